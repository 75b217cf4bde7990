"""The host's side of a device: SSH, deployment, releases, and talking to the agent. paramiko lives only here.

    from quarl.device.deploy.agent_session import AgentSession
    from quarl.device.deploy.connection import connect
    from quarl.device.deploy.deploy import deploy

    with connect("pi@raspberrypi") as connection:
        deploy(connection, bundle, [Precision.INT8])
        with AgentSession(connection, "III") as agent:
            agent.request("load", precision="int8")
            print(agent.act(observation), agent.request("latency", runs=1000)["percentiles"])

device.py is the one way to work on a device, on_device/ what it sends there (and which files a device has), state.py
and records.py what it reads, loops.py how a policy is served.
"""
