"""The host's side of a device: SSH, deployment, releases, and talking to the agent. paramiko lives only here.

    from quarl.device.deploy.agent_session import AgentSession
    from quarl.device.deploy.connection import connect
    from quarl.device.deploy.deploy import deploy

    with connect("pi@raspberrypi") as connection:
        deploy(connection, bundle, [Precision.INT8])
        with AgentSession(connection, "III") as agent:
            agent.request("load", precision="int8")
            print(agent.act(observation), agent.request("latency", runs=1000)["percentiles"])

On the device (several policies live side by side, and share the unpacked wheels):

    ~/quarl/lock                          held while a deployment works on this device
    ~/quarl/envs/NAME-VERSION-HASH/       one unpacked wheel each; the device needs no pip and no internet
    ~/quarl/policies/III/incoming/ID/     an upload; gone, or renamed into releases/ when it passed every check
    ~/quarl/policies/III/releases/ID/     run-agent, lib/, bundle/, release.json, its signature, mark.json of one that
                                          is not to be gone back to; the last three stay, the last good one, what an
                                          agent runs from
    ~/quarl/policies/III/current          symbolic link to one of them, switched by rename(2)
    ~/quarl/services/                     how policies are served in loops, launch.py that starts one, supervise.py
    ~/quarl/trust/                        who may sign what runs here, and what was accepted (docs/security.md)
    ~/quarl/run/III.sock                  where a robot's program joins the loop (docs/running.md)
    ~/quarl/policies/III/native-modes.json  how the native engine's layers are fastest here, as an agent measured it
"""
