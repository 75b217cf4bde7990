"""Counts what a Cortex-A53 executes, without one: the agent in qemu-aarch64, watched by a QEMU plugin of our own.

    counter.c, cache.h   the plugin: instructions, loads, stores, misses of modelled caches, between two markers
    building.py          compiles it into the user's cache folder
    sysroot.py           Debian's arm64 Python and C library, unpacked, with a Pi's /proc/cpuinfo and /sys
    environment.py       the agent's code as it is deployed, and the aarch64 wheels, unpacked
    guest.py             runs inside: loads an artifact through the agent and sets the markers
    counting.py          starts it all and reads the counts

Traps met on the way, each of which made counts differ between runs or the guest crash:

- The static qemu (qemu-user-static) has no plugins; Debian ships no qemu-plugin.h.
- LiteRT and onnxruntime crash without a four-core /proc/cpuinfo and /sys/devices/system/cpu. What the sysroot lacks
  is taken from the host: an incomplete /sys there means the host's cache sizes.
- onnxruntime starts a thread that reports to its maker; ORT_DISABLE_TELEMETRY=1 before it is imported.
- numpy seeds a generator when it is imported, and runtimes read the clock: the plugin makes both repeatable.
- A changed module is compiled again; so the code that runs is a copy, compiled beforehand.
- The length of /proc/self/status changes where Python's objects lie, and with it the cache misses.
"""
