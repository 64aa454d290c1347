"""Floor 2: messages to ids, incrementally and without forged control tokens; ids to actions with token spans."""

from treadle.rendering.fenced import FencedParser
from treadle.rendering.hermes import HermesParser
from treadle.rendering.layout import Dialect
from treadle.rendering.parsing import Parser, TextSpan
from treadle.rendering.plain import PlainParser
from treadle.rendering.renderer import Parsed, Renderer

__all__ = ["Dialect", "FencedParser", "HermesParser", "Parsed", "Parser", "PlainParser", "Renderer", "TextSpan"]
