"""Floor 5: readers of a run. They listen to events; nobody below knows them.

    JsonlExport   events.jsonl and metrics.jsonl, for other programs
    PlainLines    one line per thing that matters, for logs and pipes
    LiveView      a terminal view that redraws itself
    Report        report.md and learning-curve.png at the end

A listener returns at once and never raises into the run: a full disk or a closed terminal silences it. Unknown events
and missing keys are normal; every reader takes what it knows.
"""

from treadle.observability.export import JsonlExport
from treadle.observability.lines import PlainLines
from treadle.observability.live import LiveView
from treadle.observability.report import Report

__all__ = ["JsonlExport", "LiveView", "PlainLines", "Report"]
