"""A session from Python: start a shell on this machine, run two commands in it, and stop it.

Run it with the Python that connmgr is installed for, while the daemon runs.
"""

from connmgr.client import Client, ClientError

LOCAL_MACHINE = "f0ec68aa-63f5-405c-b178-9a4454556d6b"

with Client(name="session.py") as connmgr:
    shell = connmgr.post("/shell/start", connection=LOCAL_MACHINE)
    print("running on", shell["osName"])
    connmgr.post("/shell/exec", connection=LOCAL_MACHINE, command="cd /; export GREETING=hello")
    result = connmgr.post(
        "/shell/exec", connection=LOCAL_MACHINE, command="echo $GREETING from $PWD; exit 3", timeout=10
    )
    print("exit code", result["exitCode"], "and", repr(result["stdout"]))
    try:
        connmgr.post("/shell/exec", connection=LOCAL_MACHINE, command="sleep 60", timeout=0.5)
    except ClientError as error:
        print("refused:", error.code)
    connmgr.post("/shell/stop", connection=LOCAL_MACHINE)
