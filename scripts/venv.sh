# Sourced by scripts/run and scripts/test: makes .venv with ampx and the extras in $1, once per pyproject.toml.
ampx_venv() {
  local extras=$1 root python mark
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  python=${PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || {
    echo "ampx needs Python 3.11, 3.12 or 3.13; set PYTHON to one, for example PYTHON=python3.11" >&2
    return 2
  }
  mark="$root/.venv/.installed-${extras:-core}-$(cksum < "$root/pyproject.toml" | cut -d' ' -f1)"
  if [ ! -f "$mark" ]; then
    echo "setting up $root/.venv (torch makes this take a few minutes the first time)" >&2
    [ -x "$root/.venv/bin/python" ] || "$python" -m venv "$root/.venv"
    "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check -e "$root${extras:+[$extras]}"
    touch "$mark"
  fi
  export PATH="$root/.venv/bin:$PATH"
}
