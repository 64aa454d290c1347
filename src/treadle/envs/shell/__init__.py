"""File tasks in a real Linux shell: the environment of the main job.

`ShellTaskset` makes tasks (endless, seeded, counter-based), `ShellEnv` plays one of them in a sandbox. A family is one
skill, in a file per craft:

    counting     count-lines, count-words, count-matches, count-files
    reading      show-file, first-lines, last-lines, nth-line
    searching    find-lines, which-file
    finding      find-name, largest-file
    columns      sum-column, pick-column, largest-number
    sorting      sort-lines, unique-lines
    making       write-file, append-line, make-folder
    moving       copy-file, move-file, delete-file
    editing      replace-word, delete-lines
    archives     pack-folder, unpack-archive, list-archive
    permissions  make-executable
    comparing    compare-files

Every family has three levels. *Easy* is one short command. *Medium* is a path in a folder, an option more, or a pipe.
What is asked for at these two levels is what the last command prints, or the state of the files. *Hard* begins with
something to find out (mostly a note that names a file, a word, a number), goes on with a second command that depends on
it, and ends with the answer said in the final message; where files are to be changed, they are checked as well.

Train and held-out tasks share no wording and no name of a file or folder. A wording of the held-out split asks for
the same in another sentence. Each task carries a scripted solution, other ordinary ways to solve it, and near misses
(`taskset.scene`): the tests play all of them in the sandbox.
"""

from treadle.envs.shell.env import ShellEnv
from treadle.envs.shell.taskset import ShellTaskset

__all__ = ["ShellEnv", "ShellTaskset"]
