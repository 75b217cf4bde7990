"""What the host runs on the device while it deploys: standard library only, sent as text, nothing is installed.

~/quarl/lock                          held with flock(2) while a deployment works on this device
~/quarl/envs/NAME-VERSION-HASH/       one unpacked wheel each, shared by all releases of all policies
~/quarl/policies/POLICY/incoming/ID/  being uploaded and checked; swept by the next deployment if one dies
~/quarl/policies/POLICY/releases/ID/  complete, verified, its golden vectors checked on this device
                                      release.json: what was published; mark.json: why not to go back to it
~/quarl/policies/POLICY/current       symbolic link to one of them, switched by rename(2)
~/quarl/policies/POLICY/native-modes.json  what an agent measured of the native engine; left alone

~/quarl itself may be a link, to a larger disk for example; nothing below it may be, but ``current``.
"""
