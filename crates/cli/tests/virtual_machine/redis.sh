#!/bin/bash
# Fills a Redis server, snapshots it with BGSAVE while values change, and loads the snapshot again; writes digests.
#   redis.sh DIRECTORY KEYS
# Whoever asks has a part of the same small memory, so nobody asks often.
set -e
directory=$1 keys=$2
socket=$directory/redis.sock
ask() { redis-cli -s "$socket" "$@"; }

start() {
    redis-server --port 0 --unixsocket "$socket" --dir "$directory" --dbfilename snapshot.rdb --appendonly no \
        --enable-debug-command yes --save '' >"$directory/redis.log" 2>&1 &
    server=$!
    until [ "$(ask PING 2>/dev/null)" = PONG ]; do
        kill -0 $server
        sleep 0.5
    done
}

start
trap 'kill -KILL $server 2>/dev/null || true' EXIT
ask DEBUG POPULATE "$keys" key 1500
echo "filled: $(ask DEBUG DIGEST)"
ask BGSAVE >/dev/null
# Values change while the forked child writes what was there before.
for key in $(seq 0 7 "$keys"); do echo "SET key:$key changed-$((key * 31))"; done | ask >/dev/null
while ask INFO persistence | grep -q rdb_bgsave_in_progress:1; do sleep 0.5; done
ask INFO persistence | grep -o rdb_last_bgsave_status:ok
echo "changed: $(ask DEBUG DIGEST)"
ask SHUTDOWN NOSAVE
wait $server || true
start
until [ "$(ask DBSIZE)" = "$keys" ]; do sleep 0.5; done
echo "loaded: $(ask DEBUG DIGEST)"
ask SHUTDOWN NOSAVE
wait $server || true
rm -f "$directory/snapshot.rdb"
