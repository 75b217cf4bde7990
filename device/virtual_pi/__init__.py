"""A Raspberry Pi 3b that anyone can start: four emulated Cortex-A53 cores, 1 GiB, Debian arm64, sshd.

    quarl pi start                    # or: make pi
    quarl status --target pi@virtual     # from here on it is a device like any other
    quarl pi stop                     # or: make pi-stop

What makes ``pi@virtual`` a name is what would make any host one: a stanza in an ssh_config file (address, port, key)
and a line in known_hosts, both written when the machine starts. Nothing else in the house knows about it.

recipe.py      what goes into the image, and the hash of all that
image.py       the image, built once per recipe: packages, accounts, initial RAM disk, card
card.py        bytes of an SD card: partition table, swap, file system
machine.py     QEMU's command line for both machines
running.py     start, stop, status: one folder per machine, a copy-on-write card, a host by name, no process left behind
"""
