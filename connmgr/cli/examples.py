"""Examples at the end of each command's help."""

from __future__ import annotations

import click

EXAMPLES = {
    "help": ["connmgr help exec", "connmgr help vault user add", "connmgr help exit-codes"],
    "serve": ["connmgr serve", "connmgr serve --port 0 --idle-timeout 3600"],
    "events": ["connmgr events", "connmgr events --kind job --kind terminal --json"],
    "web": ["connmgr web", "connmgr web --print", "connmgr web --token-file ~/colleague.token"],
    "status": ["connmgr status", "connmgr status --json"],
    "stop": ["connmgr stop"],
    "ls": ["connmgr ls", "connmgr ls 'fleet/**' --type ssh -l", "connmgr ls --format names --failed outcomes"],
    "info": ["connmgr info web1", "connmgr info web1 --refresh", "connmgr info 'fleet/*' --json"],
    "add": [
        "connmgr add ssh web1 host=web1.example user=deploy --category fleet",
        "connmgr add ssh db host=db.example gateway=web1 --secret password",
        "connmgr add shellEnvironment root host=web1 elevated=yes",
    ],
    "edit": [
        "connmgr edit web1 port=2222",
        "connmgr edit db --secret password --validate",
        "connmgr edit --all 'fleet/eu/*' port=2222 --dry-run",
    ],
    "rm": ["connmgr rm web1", "connmgr rm web1 web2 --yes", "connmgr rm 'old/**' --dry-run"],
    "mv": [
        "connmgr mv web1 www1",
        "connmgr mv web1 --category fleet/eu",
        "connmgr mv --all 'web*' --category fleet/eu --yes",
    ],
    "category add": ["connmgr category add fleet/eu"],
    "category ls": ["connmgr category ls", "connmgr category ls 'fleet/**' --json"],
    "category rm": ["connmgr category rm fleet/eu", "connmgr category rm fleet --children --contents"],
    "exec": [
        "connmgr exec web1 -- 'cd /srv && ls *.log'",
        "connmgr exec --all 'fleet/**' --limit 3 --json -- uptime > outcomes",
        "tar c site | connmgr exec --cwd /srv web1 tar x",
        "connmgr exec --all 'web*' --sudo --script setup.sh -- production",
    ],
    "shell": ["connmgr shell web1", "connmgr shell --attach web1 --watch", "connmgr shell web1 < commands"],
    "ssh": ["connmgr ssh web1 uname -a", "rsync -e 'connmgr ssh' -a site/ web1:/srv/site"],
    "ssh-config": [
        "connmgr ssh-config --write",
        "connmgr ssh-config 'fleet/*' > fleet.conf && ssh -F fleet.conf web1",
        "connmgr ssh-config --remove",
    ],
    "start": ["connmgr start web1", "connmgr start 'fleet/**' -j 32"],
    "restart": ["connmgr restart web1", "connmgr restart 'fleet/**' --yes"],
    "disconnect": [
        "connmgr disconnect web1",
        "connmgr disconnect web1 --session build",
        "connmgr disconnect 'fleet/**' --yes",
    ],
    "container start": ["connmgr container start web1/app", "connmgr container start 'web1/*'"],
    "container stop": ["connmgr container stop web1/app", "connmgr container stop --type podman --dry-run"],
    "container restart": ["connmgr container restart web1/app", "connmgr container restart 'web*/app' --yes"],
    "container logs": ["connmgr container logs web1/app", "connmgr container logs -f --tail 100 web1/app"],
    "job info": ["connmgr job info nightly"],
    "job input": ["connmgr job input nightly < answers"],
    "job kill": ["connmgr job kill nightly", "connmgr job kill nightly --signal HUP"],
    "job logs": ["connmgr job logs nightly", "connmgr job logs -f nightly"],
    "job ls": ["connmgr job ls", "connmgr job ls 'web*' --state running"],
    "job orphans": ["connmgr job orphans web1", "connmgr job orphans web1 --remove"],
    "job rm": ["connmgr job rm nightly"],
    "job wait": ["connmgr job wait nightly; echo $?", "connmgr job wait --all nightly"],
    "command ls": ["connmgr command ls", "connmgr command ls --json"],
    "command rm": ["connmgr command rm restart-web"],
    "command save": [
        "connmgr command save log --parameter n=integer:1..99 -- tail -n '{n}' /log",
    ],
    "terminal close": ["connmgr terminal close web1"],
    "terminal export": ["connmgr terminal export 8d5b0f0e demo.cast"],
    "terminal ls": ["connmgr terminal ls", "connmgr terminal ls 'web*'"],
    "terminal recordings": ["connmgr terminal recordings 'web*'", "connmgr terminal recordings --search 'denied'"],
    "terminal screen": ["connmgr terminal screen web1", "connmgr terminal screen 8d5b0f0e"],
    "tunnel close": ["connmgr tunnel close web1/services/5432"],
    "tunnel ls": ["connmgr tunnel ls", "connmgr tunnel ls 'web1/**' --json"],
    "tunnel open": [
        "connmgr tunnel open web1 5432",
        "connmgr tunnel open web1 db.internal:5432 --local-port 15432",
        "connmgr tunnel open web1/services/5432",
    ],
    "mcp": ["connmgr mcp --token-file agent.token", "connmgr mcp --http --port 0"],
    "mcp install": [
        "connmgr mcp install claude --only 'web*'",
        "connmgr mcp install cursor --only web1 --scope fs.read --write",
        "connmgr mcp install codex --only db --expires 12h --may 'argv:/bin/ps ax'",
        "connmgr mcp install vscode --only db --ask 'argv:/bin/rm *' --approve-here",
    ],
    "mcp uninstall": ["connmgr mcp uninstall claude"],
    "token create": [
        "connmgr token create --for ci --expires 1h --only web1 --output ci.token",
        "connmgr token create --for df --expires 1h --may 'argv:/bin/df -h *'",
        "connmgr token create --for ls --expires 30d --only db --may 'read:/srv/**'",
    ],
    "token info": ["connmgr token info --token-file ci.token", "connmgr token info ci --json"],
    "token lend": ["connmgr token lend ci --for 1h", "connmgr token lend ci --end"],
    "token ls": ["connmgr token ls", "connmgr token ls --json"],
    "token renew": ["connmgr token renew ci --expires 7d"],
    "token revoke": ["connmgr token revoke ci"],
    "trust": ["connmgr trust web1", "connmgr trust 'fleet/**'", "connmgr trust web1 --forget"],
    "cp": [
        "connmgr cp site.conf web1:/etc/site.conf",
        "connmgr cp 'web1:/var/log/*.log' logs/",
        "connmgr cp -r --checksum --exclude cache site web1:/srv/site",
        "connmgr cp --all 'web*' --sudo motd :/etc/motd",
    ],
    "import-ssh-config": ["connmgr import-ssh-config", "connmgr import-ssh-config --apply --category fleet"],
    "export": ["connmgr export > vault.yaml", "connmgr export --json"],
    "apply": ["connmgr apply -f vault.yaml", "connmgr apply -f vault.yaml --prune --yes"],
    "import-ansible-inventory": ["connmgr import-ansible-inventory hosts.ini --apply"],
    "approve": [
        "connmgr approve",
        "connmgr approve --watch --notify",
        "connmgr approve c8a3a5d4",
        "connmgr approve c8a3a5d4-5f1e-4a8e-9a51-0c4b7de1a2f3 --grant 1h",
    ],
    "encrypt": ["connmgr encrypt < password", "connmgr encrypt --principal alice < password"],
    "decrypt": ["connmgr decrypt < sealed.json"],
    "sudo-password": ["connmgr sudo-password web1", "connmgr sudo-password --category fleet < password"],
    "vault backup": ["connmgr vault backup vault-today.db"],
    "vault lock": ["connmgr vault lock"],
    "vault restore": ["connmgr vault restore vault-today.db"],
    "vault rotate-key": ["connmgr vault rotate-key"],
    "vault status": ["connmgr vault status"],
    "vault unlock": ["connmgr vault unlock alice"],
    "vault user add": ["connmgr vault user add alice"],
    "vault user passphrase": ["connmgr vault user passphrase alice"],
    "vault user rm": ["connmgr vault user rm alice"],
    "audit": [
        "connmgr audit --since 2h",
        "connmgr audit --connection web1 --action shell.exec --json",
        "connmgr audit --code policy_denied -n 20",
    ],
    "audit verify": [
        "connmgr audit verify",
        "connmgr audit verify --json",
        "connmgr audit verify --also /mnt/web1/connmgr",
    ],
    "audit forget": ["connmgr audit forget 0f3a9c5be1d24786"],
    "plugins": ["connmgr plugins", "connmgr plugins --json"],
    "doctor": ["connmgr doctor", "connmgr doctor --json"],
    "service install": ["connmgr service install"],
    "service status": ["connmgr service status"],
    "service uninstall": ["connmgr service uninstall"],
    "api-key": ["connmgr api-key --output connmgr.key", "connmgr api-key --rotate"],
    "completion": ['eval "$(connmgr completion bash)"', "connmgr completion fish | source"],
}
"""The example lines of each command, by its words."""


def give_examples(command: click.Command, words: str) -> None:
    """Add the examples of ``command``, which is called by ``words``, and of all below it to their help."""
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            give_examples(one, f"{words} {name}")
    if words in EXAMPLES:
        command.epilog = "\n".join(["\b", "Examples:", *(f"  {line}" for line in EXAMPLES[words])])
