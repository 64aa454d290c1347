"""Packing a folder into a tar archive, unpacking one, listing one."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping

from treadle.envs.shell.checks import OneOf, Printed, PrintedPaths, StatedWord, TarOf
from treadle.envs.shell.family import Draft, Draw, Family, Level, both, noted

_LONG_AGO = 1_700_000_000
"""Time stamp of archived files, in seconds: fixed, so that the same task has the same bytes."""


def tar(files: Mapping[str, bytes]) -> bytes:
    """An uncompressed archive of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), _LONG_AGO, 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _filled(d: Draw, count: int) -> tuple[str, dict[str, bytes]]:
    """A folder with files."""
    folder = d.folder()
    return folder, {path: d.files[path] for path in d.crowd(count, folder=folder)}


def _pack(d: Draw, *, zipped: bool = False) -> Draft:
    folder, members = _filled(d, d.number(2, 3))
    d.crowd(2)
    archive = d.file("tar.gz" if zipped else "tar")
    return Draft(
        slots={"folder": folder, "archive": archive},
        check=d.left({archive: TarOf(members=members, zipped=zipped)}),
        commands=(f"tar -c{'z' if zipped else ''}f {archive} {folder}",),
        others=(
            f"tar -cav -f {archive} {folder}/",
            f"tar c{'z' if zipped else ''}f {archive} ./{folder}",
        ),
        misses=(
            f"tar -c{'' if zipped else 'z'}f {archive} {folder}",
            f"touch {archive}",
            f"cp -r {folder} {archive}",
            f"tar -cf {archive} {next(iter(members))}",
        ),
    )


def _pack_hard(d: Draw) -> Draft:
    folder, members = _filled(d, 2)
    other, _ = _filled(d, 2)
    note = d.note("folder", folder)
    archive = d.file("tar")
    return Draft(
        slots={"note": note, "archive": archive},
        check=both(StatedWord(answer=folder, rivals=frozenset([other])), d.left({archive: TarOf(members=members)})),
        commands=(f"cat {note}", f"tar -cf {archive} {folder}"),
        answer=folder,
        misses=(f"tar -cf {archive} {folder}", f"tar -cf {archive} {other}", f"tar -cf {archive} {folder} {other}"),
    )


def _archived(d: Draw, count: int) -> tuple[str, dict[str, bytes]]:
    """An archive in the workspace, and what it holds."""
    members = {path: d.files.pop(path) for path in d.crowd(count)}
    return d.put(d.file("tar"), tar(members)), members


def _unpack(d: Draw) -> Draft:
    archive, members = _archived(d, d.number(1, 3))
    d.crowd(3)
    return Draft(
        slots={"archive": archive},
        check=d.left({path: OneOf(texts=(content,)) for path, content in members.items()}),
        commands=(f"tar -xf {archive}",),
        others=(f"tar xvf {archive}",),
        misses=(f"tar -tf {archive}", f"cat {archive}", f"touch {' '.join(members)}"),
    )


def _unpack_into(d: Draw) -> Draft:
    archive, members = _archived(d, d.number(1, 3))
    folder = d.folder()
    d.crowd(2)
    return Draft(
        slots={"archive": archive, "folder": folder},
        check=d.left({f"{folder}/{path}": OneOf(texts=(content,)) for path, content in members.items()}),
        commands=(f"tar -xf {archive} -C {folder}",),
        others=(f"cd {folder} && tar xf ../{archive}",),
        misses=(f"tar -xf {archive}", f"tar -tf {archive}", f"cp {archive} {folder}"),
    )


def _unpack_hard(d: Draw) -> Draft:
    packed = [_archived(d, 1) for _ in range(3)]
    archive, members = packed[0]
    others = frozenset(name for _, held in packed[1:] for name in held)
    note = d.note("file", archive)
    (inside,) = members
    return Draft(
        slots={"note": note},
        check=both(StatedWord(answer=inside, rivals=others), d.left({inside: OneOf(texts=(members[inside],))})),
        commands=(f"cat {note}", f"tar -xvf {archive}"),
        answer=inside,
        misses=(f"tar -xf {archive}", f"tar -tf {archive}"),
    )


def _list(d: Draw) -> Draft:
    archive, members = _archived(d, d.number(2, 4))
    d.crowd(3)
    return Draft(
        slots={"archive": archive},
        check=PrintedPaths(accept=(frozenset(members),)),
        commands=(f"tar -tf {archive}",),
        others=(
            f"tar tf {archive}",
            f"tar -tvf {archive}",
            f"tar --list -f {archive} | sort",
        ),
        misses=(f"tar -xf {archive}", f"cat {archive}", "ls", f"tar -xf {archive} && ls"),
    )


def _list_count(d: Draw) -> Draft:
    archive, members = _archived(d, d.number(2, 6))
    d.crowd(1)
    return Draft(
        slots={"archive": archive},
        check=Printed(accept=(str(len(members)),)),
        commands=(f"tar -tf {archive} | wc -l",),
        others=(f"tar tvf {archive} | wc -l",),
        misses=(f"tar -tf {archive}", f"wc -l < {archive}"),
    )


def _list_hard(d: Draw) -> Draft:
    packed = [_archived(d, 1) for _ in range(3)]
    archive, members = packed[0]
    others = frozenset(name for _, held in packed[1:] for name in held)
    note = d.note("file", archive)
    (inside,) = members
    return Draft(
        slots={"note": note},
        check=StatedWord(answer=inside, rivals=others),
        commands=(f"cat {note}", f"tar -tf {archive}"),
        answer=inside,
        misses=(f"tar -tf {archive}", f"cat {archive}"),
    )


FAMILIES = (
    Family(
        name="pack-folder",
        easy=Level(
            train=(
                "Pack the folder {folder} into {archive}.",
                "Make the archive {archive} from the folder {folder}.",
                "Create {archive}, an archive of the folder {folder}.",
                "Put the folder {folder} into a tar archive {archive}.",
                "Archive the folder {folder} as {archive}.",
                "Into {archive}, pack the folder {folder}.",
                "From the folder {folder}, make a tar archive named {archive}.",
                "I need {archive}, a tar archive with the folder {folder}.",
                "{archive} should be a tar archive of {folder}. Make it so.",
                "Pack {folder} with tar; name the archive {archive}.",
                "Save the folder {folder} in the archive {archive}.",
                "The folder {folder} should be in a tar archive {archive}. Make it.",
                "Use tar to pack {folder} as {archive}.",
            ),
            heldout=(
                "The folder {folder} should be packed into {archive}. Do it.",
                "Make a tar archive {archive} of the folder {folder}.",
                "Turn the folder {folder} into a tar archive with the name {archive}.",
            ),
            build=_pack,
        ),
        medium=Level(
            train=(
                "Pack the folder {folder} into the compressed archive {archive}.",
                "Make the compressed archive {archive} from the folder {folder}.",
                "Create {archive}, a compressed archive of the folder {folder}.",
                "Put the folder {folder} into a compressed tar archive {archive}.",
                "Archive and compress the folder {folder} as {archive}.",
                "Into {archive}, pack the folder {folder}, compressed.",
                "From the folder {folder}, make a compressed tar archive named {archive}.",
                "I need {archive}, a compressed archive with the folder {folder}.",
                "{archive} should be a compressed archive of {folder}. Make it so.",
                "Pack {folder} with tar and gzip; name the archive {archive}.",
                "Save the folder {folder} in the compressed archive {archive}.",
                "Use tar to pack and compress {folder} as {archive}.",
            ),
            heldout=(
                "The folder {folder} should be packed and compressed into {archive}. Do it.",
                "Make a compressed tar archive {archive} of the folder {folder}.",
                "Turn the folder {folder} into a compressed tar archive with the name {archive}.",
            ),
            build=lambda d: _pack(d, zipped=True),
        ),
        hard=noted(
            "folder",
            _pack_hard,
            train=(
                "Pack that folder into {archive} and say its name.",
                "Make the archive {archive} from that folder and say which folder it was.",
                "Archive that folder as {archive} and say its name.",
                "Into {archive}, pack that folder. Say the name of the folder.",
                "{archive} should be a tar archive of that folder. Make it and say the folder.",
                "Use tar to pack that folder as {archive}. Tell me which folder it was.",
            ),
            heldout=(
                "Then pack that folder into {archive}, and say the name of the folder.",
                "That folder should be in the archive {archive}: pack it, and say its name.",
            ),
        ),
    ),
    Family(
        name="unpack-archive",
        easy=Level(
            train=(
                "Unpack the archive {archive}.",
                "Extract {archive}.",
                "Unpack {archive} here.",
                "Extract all files from the archive {archive}.",
                "Get all files out of {archive}.",
                "Take the files out of the archive {archive}.",
                "From {archive}, extract all files.",
                "The files in {archive} should be here. Unpack them.",
                "Use tar to unpack {archive}.",
                "I need the files from the archive {archive}. Extract them.",
                "Here, extract the archive {archive}.",
                "Open up the archive {archive}: extract it.",
                "What is packed in {archive} should be unpacked here. Do it.",
            ),
            heldout=(
                "The archive {archive} should be unpacked. Do it.",
                "Extract what the archive {archive} contains.",
                "Unpack everything that is in {archive}.",
            ),
            build=_unpack,
        ),
        medium=Level(
            train=(
                "Unpack the archive {archive} into the folder {folder}.",
                "Extract {archive} into the folder {folder}.",
                "Unpack {archive} in the folder {folder}.",
                "Extract all files from the archive {archive} into the folder {folder}.",
                "Into {folder}, unpack the files of {archive}.",
                "To the folder {folder}, extract all files from {archive}.",
                "In the folder {folder}, extract what is in {archive}.",
                "From {archive}, extract all files into {folder}.",
                "The files in {archive} should go into {folder}. Unpack them.",
                "Use tar to unpack {archive} into {folder}.",
                "I need the files from {archive} in the folder {folder}. Extract them.",
                "Get all files out of {archive} and into {folder}.",
                "Put the files from the archive {archive} into the folder {folder}.",
            ),
            heldout=(
                "The archive {archive} should be unpacked into the folder {folder}. Do it.",
                "Into the folder {folder}, extract the archive {archive}.",
                "Unpack everything that is in {archive} so that it lands in {folder}.",
            ),
            build=_unpack_into,
        ),
        hard=noted(
            "file",
            _unpack_hard,
            train=(
                "Unpack that archive and say the name of the file in it.",
                "Extract that archive and say which file came out.",
                "Extract that archive. What is the file in it named? Say it.",
                "Take the file out of that archive and say its name.",
                "Use tar to unpack that archive. Tell me which file was in it.",
                "The file in that archive should be here. Extract it and say its name.",
            ),
            heldout=(
                "Then unpack that archive, and say what the file in it is named.",
                "Get the file out of that archive, and say the name of it.",
            ),
        ),
    ),
    Family(
        name="list-archive",
        easy=Level(
            train=(
                "List the files in the archive {archive}.",
                "Print the names of the files in {archive}.",
                "Which files are in the archive {archive}?",
                "List what {archive} contains, but do not unpack it.",
                "Tell me which files {archive} has in it.",
                "Give me the names of all files in {archive}.",
                "From {archive}, print the list of files.",
                "In the archive {archive}, which files are there?",
                "What is in the archive {archive}? List it.",
                "Look into {archive} and list its files.",
                "Use tar to list {archive}.",
                "Show which files are packed in {archive}.",
                "What files does {archive} contain?",
            ),
            heldout=(
                "Show me the names of the files in the archive {archive}.",
                "Without unpacking it, list the files in {archive}.",
                "List all that is packed in the archive {archive}.",
            ),
            build=_list,
        ),
        medium=Level(
            train=(
                "How many files are in the archive {archive}?",
                "Count the files in {archive}.",
                "Print the number of files in the archive {archive}.",
                "Show how many files {archive} contains.",
                "In the archive {archive}, count the files.",
                "Tell me the number of files that {archive} holds.",
                "Give me the number of files in {archive}.",
                "How many files does {archive} hold?",
                "Say how many files are packed in {archive}.",
                "Look into {archive} and count its files.",
                "The archive {archive} holds some files. How many?",
                "What is the file count of {archive}?",
            ),
            heldout=(
                "What is the number of files in the archive {archive}?",
                "Tell me how many files there are in {archive}.",
                "In the archive {archive}, how many files are there?",
            ),
            build=_list_count,
        ),
        hard=noted(
            "file",
            _list_hard,
            train=(
                "List that archive and say the name of the file in it.",
                "Say which file is in that archive.",
                "Which file does that archive hold? Say its name.",
                "Tell me the name of the file in that archive.",
                "Look into that archive and say which file it holds.",
                "Use tar to list that archive. Say the file in it.",
            ),
            heldout=(
                "Then say the name of the file in that archive.",
                "Say what the file that is in that archive is named.",
            ),
        ),
    ),
)
"""The families of this craft."""
