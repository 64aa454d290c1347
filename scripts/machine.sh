#!/bin/sh
# Sees to what pip cannot install: a Python >= 3.11 that can make virtual environments, and bubblewrap.
# Prints the path of that Python. Where a system package is missing it names the one command that installs it,
# and runs the command if it may (root with apt-get). The library itself never installs anything.
set -eu

say() { printf 'treadle: %s\n' "$*" >&2; }

pick_python() {
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        found=$(command -v "$name" 2>/dev/null) || continue
        if "$found" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$found"
            return 0
        fi
    done
    return 1
}

missing_packages() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null || case "$python" in
        */python3) printf 'python3-venv ' ;;
        *) printf '%s-venv ' "$(basename "$python")" ;;
    esac
    command -v bwrap >/dev/null 2>&1 || printf 'bubblewrap '
}

if ! python=$(pick_python); then
    say "needs Python >= 3.11, found $("${PYTHON:-python3}" --version 2>/dev/null || echo none)."
    say "Install one (such as: apt-get install -y python3.11 python3.11-venv) or name it: make PYTHON=/path/to/python3"
    exit 1
fi

missing=$(missing_packages)
if [ -n "$missing" ]; then
    install="apt-get install -y --no-install-recommends ${missing% }"
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        say "missing on this machine: ${missing% }. Run this and try again:"
        printf '    sudo sh -c "apt-get update && %s"\n' "$install" >&2
        exit 1
    fi
    say "missing on this machine: ${missing% }. Running: apt-get update && $install"
    log=$(mktemp)
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive $install; } >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        say "that failed; the whole output is in $log"
        exit 1
    fi
    rm -f "$log"
    missing=$(missing_packages)
    if [ -n "$missing" ]; then
        say "still missing after the installation: ${missing% }"
        exit 1
    fi
fi

printf '%s\n' "$python"
