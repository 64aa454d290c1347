"""The bash program that makes a shell persistent. It runs as the first process of a sandbox.

Model: the driver itself never runs what the agent wrote. It reads a nonce and a command, each ended by NUL, from the
control socket (descriptor 3), forks a subshell, and waits. The subshell loads the state that the last command left
(variables, exports, functions, umask, working directory), evaluates the command, and saves the state when it exits,
however it exits: after the last line, by `exit`, by `set -e`. It has no descriptor of the driver's. When it is gone the
driver *sweeps*: everything the command left running is killed, so nothing leaks into the next output. Then it answers
`done NONCE STATUS SAVED` on the socket. A command that is killed, or replaces its shell by `exec`, saves nothing
(SAVED=0): the next one starts from the state before.

State goes to one of two files in turn; `ok` names the last one written to its end, so that a half-written file is never
read. Before the first command the state is that of `start`, if a fork was given one. SIGUSR1 means: sweep now. As
process 1 of its own namespace the driver cannot be killed from inside.

The program is one single line, so that bash counts the lines of a command from 1 in its messages. Every name of it
starts with `__t_`; those are never saved.
"""

from __future__ import annotations

import shlex

from treadle.envs.sandbox import SandboxLimits

START = "start"
"""The file of a state that was there before the first command."""
SLOTS = ("a", "b")
"""The files that states are saved to, in turn, the first one first."""
SWEEP_ALL = "while kill -9 -1; do :; done"
"""For a driver that is process 1: everything but itself. The kernel's kill(-1) is atomic, so no fork escapes it."""
SWEEP_GROUP = "kill -9 -- -$__t_pid"
"""For a driver that shares the machine: the command's process group, which `set -m` gave it."""

_SAVE = r"""
{
    __t_rc=$?; __t_ifs=$IFS; IFS=$' \t\n'; builtin trap - DEBUG ERR RETURN EXIT; builtin set +euxv;
    builtin compgen -v >$__t_dir/names; builtin mapfile -t __t_names <$__t_dir/names; __t_keep=();
    for __t_v in "${__t_names[@]}"; do
        [[ $__t_v == __t_* || $__t_base == *" $__t_v "* ]] || __t_keep+=("$__t_v");
    done;
    {
        builtin umask -p;
        ((${#__t_keep[@]})) && builtin declare -p "${__t_keep[@]}";
        builtin export -p;
        builtin declare -f;
        builtin printf "builtin cd -- %q || builtin cd -- %q\nOLDPWD=%q\nIFS=%q\n"
            "$PWD" "$__t_home" "$OLDPWD" "$__t_ifs";
    } >$__t_dir/$__t_slot && builtin printf "%s\n" $__t_slot >$__t_dir/ok;
    builtin exit $__t_rc;
} >/dev/null 2>&1
"""

_DRIVER = r"""
@LIMITS@
exec 2>/dev/null;
trap '' HUP INT QUIT TERM PIPE ALRM USR2 TSTP TTIN TTOU;
@CONTROL@
__t_home=@HOME@; __t_dir=@STATE@; __t_cur=@START@; __t_slot=a; __t_pid=; __t_n=; __t_c=; __t_rc=; __t_ok=; __t_base=;
__t_v=; __t_names=(); __t_keep=(); __t_save=@SAVE@;
trap '@SWEEP@' USR1;
mapfile -t __t_names < <(compgen -v); __t_base=" ${__t_names[*]} "; wait;
printf '\npid %s\nready\n' $$ >&3;
while IFS= read -r -d '' __t_n <&3 && IFS= read -r -d '' __t_c <&3; do
    [[ -d $__t_dir ]] || mkdir -p $__t_dir;
    [[ $__t_cur == a ]] && __t_slot=b || __t_slot=a;
    printf '\n' >$__t_dir/ok;
    (
        exec 3>&-;
        trap - HUP INT QUIT TERM PIPE ALRM USR1 USR2 TSTP TTIN TTOU;
        unset __t_n;
        trap "$__t_save" EXIT;
        [[ -r $__t_dir/$__t_cur ]] && . $__t_dir/$__t_cur 2>/dev/null;
        builtin eval "$__t_c";
        { __t_rc=$?; builtin trap "$__t_save" EXIT; builtin exit $__t_rc; } 2>/dev/null
    ) </dev/null 2>&1 &
    __t_pid=$!;
    while wait $__t_pid; __t_rc=$?; kill -0 $__t_pid; do :; done;
    @SWEEP@;
    __t_ok=; read -r __t_ok <$__t_dir/ok;
    if [[ $__t_ok == "$__t_slot" ]]; then __t_cur=$__t_slot; __t_ok=1; else __t_ok=0; fi;
    printf '\ndone %s %s %s\n' "$__t_n" $__t_rc $__t_ok >&3;
done
"""


def driver(*, control: int, home: str, state: str, sweep: str, limits: SandboxLimits | None) -> str:
    """The program for `bash -c`.

    `control` is the descriptor of the control socket, `home` the working directory to fall back to, `state` a folder
    that the driver may make and write. `limits` become resource limits of every process; None leaves them.
    """
    parts = {
        "@LIMITS@": "" if limits is None else _ulimits(limits),
        "@CONTROL@": "" if control == 3 else f"exec 3<&{control} {control}<&-;",
        "@HOME@": shlex.quote(home),
        "@START@": START,
        "@STATE@": shlex.quote(state),
        "@SAVE@": shlex.quote(_one_line(_SAVE)),
        "@SWEEP@": sweep,
    }
    text = _one_line(_DRIVER)
    for mark, value in parts.items():
        text = text.replace(mark, value)
    return text


def _ulimits(limits: SandboxLimits) -> str:
    """Set inside the sandbox: since Linux 5.14 the count of processes is then the sandbox's own, not the user's."""
    values = {
        "c": 0,
        "q": 0,
        "f": limits.file_bytes // 1024,
        "v": limits.memory_bytes // 1024,
        "t": limits.cpu_s,
        "n": limits.open_files,
        "u": limits.processes,
    }
    return " ".join(f"ulimit -{letter} {value};" for letter, value in values.items())


def _one_line(program: str) -> str:
    return " ".join(line.strip() for line in program.strip().splitlines())
