#!/bin/bash
# pipeline.sh ROUNDS SECONDS: pipelines and background jobs of a shell, with variables, traps and process substitution; one line a round.
rounds=$1 pause=$2 signals=0
trap 'signals=$((signals + 1))' USR1
(
    for ((i = 0; i < rounds; i++)); do
        # See holding.py.
        while [ "$i" -ge $((rounds * 3 / 4)) ] && [ -e hold ]; do sleep 0.1; done
        echo "$i"
        sleep "$pause"
    done
) | cat | while read -r number; do echo "$((number * number)) $number"; done | while read -r square number; do
    sum=$((sum + square))
    echo "$number $sum"
done &
job=$!
while read -r line; do
    collected+=$line
done < <(for ((i = 0; i < rounds; i++)); do echo "$((i % 10))"; sleep "$pause"; done) &
other=$!
for ((i = 0; i < 3; i++)); do
    kill -USR1 $$
done
wait $job
status=$?
wait $other
echo "ended $status $? signals $((signals > 0))"
