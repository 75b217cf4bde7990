"""What runs on a device while a host deploys, and at each start there. Sent as text; nothing is installed.

verify.sh    verifies a release and starts it; a copy is ~/quarl/services/launch.sh
session.sh   what a host's shell there does, under the lock
wheels.py    unpacks wheels and compares them, on a device with Python

~/quarl/lock                          held with flock(2) while a deployment works on this device
~/quarl/trust/                        who may sign (allowed_signers, revoked, device_class), and what was accepted
~/quarl/envs/NAME-VERSION-HASH/       one unpacked wheel each, shared by all releases of all policies
~/quarl/policies/POLICY/incoming/ID/  being uploaded and checked; removed by the next deployment if one dies
~/quarl/policies/POLICY/releases/ID/  complete, verified, its golden vectors checked on this device: run-agent, lib/,
                                      bundle/, release and release.sig (what was signed), mark.json
~/quarl/policies/POLICY/current       symbolic link to one of them, switched by rename(2)
~/quarl/policies/POLICY/trial         while a release is on trial: symbolic link to the one to go back to
~/quarl/policies/POLICY/golden-passed  what passed all golden vectors in an agent without Python; left alone
~/quarl/policies/POLICY/native-modes.json  what an agent measured of the native engine; left alone
~/quarl/services/                     what serves policies in loops, and how each is served (POLICY.settings)
~/quarl/run/POLICY.sock               where a policy's loop listens

~/quarl itself may be a link, to a larger disk for example; nothing below it may be, but ``current`` and ``trial``.
"""
