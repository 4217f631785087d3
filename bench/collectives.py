#!/usr/bin/env python3
"""Compares the transports of CPU ranks with raw Open MPI: runs bench_collectives under mpirun (raw MPI and our MPI
transport) and as torchrun would start it (our own transport), alternating, and prints the medians side by side.

  bench/collectives.py [BUILD=build/release] [--ranks 2] [--rounds 100] [--repeats 3]
"""
import argparse, json, os, socket, statistics, subprocess, sys

parser = argparse.ArgumentParser()
parser.add_argument('build', nargs='?', default='build/release')
parser.add_argument('--ranks', type=int, default=2)
parser.add_argument('--rounds', type=int, default=100)
parser.add_argument('--repeats', type=int, default=3)
options = parser.parse_args()
program = os.path.join(options.build, 'bench', 'bench_collectives')
base = dict(os.environ, OMP_NUM_THREADS='1', OMPI_ALLOW_RUN_AS_ROOT='1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM='1')


def rows(text):
    return [row for row in map(json.loads, text.splitlines()) if row['bench'] == 'all_reduce']


def by_mpi():
    return rows(subprocess.run(['mpirun', '-n', str(options.ranks), '--oversubscribe', '--bind-to', 'none', program,
                                str(options.rounds)], env=base, check=True, capture_output=True, text=True).stdout)


def natively():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(options.ranks):
        env = dict(base, RANK=str(rank), WORLD_SIZE=str(options.ranks), LOCAL_RANK=str(rank),
                   LOCAL_WORLD_SIZE=str(options.ranks), MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
        ranks.append(subprocess.Popen([program, str(options.rounds)], env=env, text=True, stdout=subprocess.PIPE))
    texts = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode != 0 for rank in ranks):
        sys.exit('a rank failed')
    return rows(texts[0])


found = {}
for _ in range(options.repeats):
    for row in by_mpi():
        found.setdefault((row['bytes'], 'raw'), []).append(row['raw_us'])
        found.setdefault((row['bytes'], 'mpi'), []).append(row['ours_us'])
    for row in natively():
        found.setdefault((row['bytes'], 'native'), []).append(row['ours_us'])
for size in sorted({size for size, _ in found}):
    raw, mpi, native = (statistics.median(found[size, kind]) for kind in ('raw', 'mpi', 'native'))
    print(json.dumps({'bench': 'all_reduce', 'ranks': options.ranks, 'bytes': size, 'repeats': options.repeats,
                      'raw_us': raw, 'mpi_us': mpi, 'native_us': native, 'mpi_of_raw': round(raw / mpi, 3),
                      'native_of_raw': round(raw / native, 3)}))
