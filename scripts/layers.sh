#!/usr/bin/env bash
# The house rules on includes: an #include may only point down, and each foreign library has one room.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
bad=0

# room: the rooms of ours that it may include
allowed() {
  case "$1" in
    base) echo "base" ;;
    spec) echo "spec base" ;;
    storage) echo "storage spec base" ;;
    api) echo "api spec base" ;;
    trainer) echo "trainer spec base" ;;
    cli) echo "cli base" ;;
    daemon) echo "daemon api storage spec base" ;;
  esac
}

rooms="base spec storage api daemon trainer cli"
for room in $rooms; do
  ok=" $(allowed "$room") "
  while IFS=: read -r file line text; do
    target=$(sed -n 's/.*#include "\([^/"]*\)\/.*/\1/p' <<<"$text")
    if [ -z "$target" ]; then
      echo "$file:$line: an include of ours is written from the repository root: $text"
      bad=1
    elif [[ "$ok" != *" $target "* ]]; then
      echo "$file:$line: $room may not include $target"
      bad=1
    fi
  done < <(grep -rn '#include "' "$room" --include='*.c' --include='*.h' --include='*.cu')
done

# agent and shim stand on spec and base alone: neither the API nor the store
while read -r hit; do
  [ -n "$hit" ] && { echo "$hit: agent and shim include neither api nor storage"; bad=1; }
done < <(grep -rnE '#include "(api|storage)/' daemon/agent daemon/shim daemon/*.c daemon/*.h 2>/dev/null)

only() { # header, room
  while read -r hit; do
    [ -n "$hit" ] && { echo "$hit: only $2 may include $1"; bad=1; }
  done < <(grep -rnE "#include <$1>" $rooms --include='*.c' --include='*.h' --include='*.cu' | grep -v "^$2/")
}
only 'sqlite3\.h' storage
only 'microhttpd\.h' api
only 'Random123/.*' trainer
only '(cuda|cublas|nccl)[A-Za-z0-9_]*\.h' trainer/cuda

# the engine does not know which backend it has
while read -r hit; do
  [ -n "$hit" ] && { echo "$hit: only trainer/cuda includes trainer/cuda"; bad=1; }
done < <(grep -rn '#include "trainer/cuda/' $rooms --include='*.c' --include='*.h' --include='*.cu' | grep -v '^trainer/cuda/')

# a name of Trainyard's that no one may use
while read -r hit; do
  [ -n "$hit" ] && { echo "$hit: no shell, ever"; bad=1; }
done < <(grep -rnE '\b(system|popen)\(' $rooms --include='*.c' | grep -vE '^[^:]+:[0-9]+:\s*(\*|//|/\*)')

[ "$bad" = 0 ] && echo "layers: every include points down"
exit "$bad"
