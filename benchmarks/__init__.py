"""Figures: DTQ beside bare loops, on one private engine, in one run. Called by `make bench` as `python -m benchmarks`.

Absolute numbers drift from machine to machine and from minute to minute, so every figure that has a bare counterpart
is a ratio: both sides are measured next to each other in each round, and the median of the rounds' ratios is reported.

    bare      the bare loops: what a hand-written asyncio program does with the same engine and the same client library
    tasks     the handlers that DTQ's worker runs here
    stage     the engine, the processes, the audit after every DTQ measurement
    gauge     CPU, memory, commands and round trips as the system and the engine count them
    measure   one function per measurement and side
    api       the HTTP service beside a bare one (api_bare), called by api_load: `make bench-api`
    report    which figures come out, their targets, the table
"""
