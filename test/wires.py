"""Network namespaces for the daemons of a test: each node in one, joined by a bridge, with wires that can be cut, or fall silent.

The namespaces live as long as processes that this module starts, and go with them. Where only root may make them, a user namespace is
made first. Where the machine allows neither, Frozen stands in: nodes that are cut off are stopped (SIGSTOP), which is silence in both directions, and
their ranks with them; it says so. Clients reach their daemon by its socket in the file system, whatever the wires do.
"""
import os
import signal
import subprocess

import job

NETWORK = "10.77.0."
PORT = 7077
READY = "echo ready; exec cat"


def hold(command):
    """A process in namespaces of its own that ends with us, once it is there."""
    holder = subprocess.Popen([*command, "sh", "-c", READY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if holder.stdout.readline() != "ready\n":
        holder.kill()
        raise PermissionError(f"{' '.join(command)}: {holder.communicate()[1].strip()}")
    return holder


class Wires:
    def __init__(self, nodes):
        self.user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        self.nodes, self.holders = nodes, []
        self.bridge = self._hold(["unshare", *self.user, "--net"])
        self._run(self.bridge, "ip", "link", "add", "bridge", "type", "bridge")
        self._run(self.bridge, "ip", "link", "set", "bridge", "up")
        self.inside = [self._hold([*self._enter(self.bridge), "unshare", "--net"]) for _ in range(nodes)]
        for node, holder in enumerate(self.inside):
            self._run(self.bridge, "ip", "link", "add", f"v{node}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
            self._run(self.bridge, "ip", "link", "set", f"v{node}", "master", "bridge", "up")
            self._run(holder, "ip", "addr", "add", f"{NETWORK}{node + 1}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self._run(holder, "ip", "link", "set", device, "up")

    def close(self):
        for holder in self.holders:
            holder.stdin.close()
            holder.wait(job.LIMIT_S)
            holder.stdout.close()
            holder.stderr.close()

    def _hold(self, command):
        self.holders.append(hold(command))
        return self.holders[-1]

    def _enter(self, holder):
        return ["nsenter", f"--target={holder.pid}", *(["--user", "--preserve-credentials"] if self.user else []), "--net"]

    def _run(self, holder, *words):
        done = subprocess.run([*self._enter(holder), *words], capture_output=True, text=True, timeout=job.LIMIT_S)
        if done.returncode:
            raise PermissionError(f"{' '.join(words)}: {done.stderr.strip()}")

    def _rules(self, node, *rules):
        chains = [f"add chain inet cut {hook} {{ type filter hook {hook} priority 0; }}" for hook in ("input", "output")]
        for line in ["add table inet cut", *chains, *(f"add rule inet cut {rule}" for rule in rules)]:
            self._run(self.inside[node], "nft", line)

    def place(self, cluster):
        """The cluster's daemons get their places; before they start."""
        for node in range(self.nodes):
            cluster.inside[node] = self._enter(self.inside[node])
            config = cluster.folder / f"node-{node}" / "config"
            lines = [line for line in config.read_text().splitlines() if not line.startswith(("listen =", "meta ="))]
            meta = f"tcp:{NETWORK}1:{PORT}" if node else f"lmdb:{cluster.meta}"
            config.write_text("\n".join([*lines, f"listen = tcp:{NETWORK}{node + 1}:{PORT}", f"meta = {meta}"]) + "\n")

    def unplug(self, node):
        """The cable is pulled on the switch's side."""
        self._run(self.bridge, "ip", "link", "set", f"v{node}", "down")

    def refuse(self, node):
        """Every packet to or from the others is answered with a reset."""
        self._rules(node, 'input iifname "eth0" meta l4proto tcp reject with tcp reset', 'output oifname "eth0" meta l4proto tcp reject with tcp reset')

    def silence(self, node):
        self._rules(node, 'input iifname "eth0" drop', 'output oifname "eth0" drop')

    def mute(self, node):
        """It hears, and is not heard."""
        self._rules(node, 'output oifname "eth0" drop')

    def deafen(self, node):
        """It is heard, and does not hear."""
        self._rules(node, 'input iifname "eth0" drop')

    def heal(self, node):
        self._run(self.inside[node], "nft", "flush ruleset")
        self._run(self.bridge, "ip", "link", "set", f"v{node}", "up")


class Frozen:
    """For machines that allow no namespaces: any cut is a stopped daemon."""

    def __init__(self, why):
        self.why, self.cluster = why, None
        print(f"NO NETWORK NAMESPACES HERE ({why}): nodes are stopped instead of cut off; one-way cuts and resets are not tried")

    def close(self):
        pass

    def place(self, cluster):
        self.cluster = cluster

    def silence(self, node):
        self.cluster.daemons[node].send_signal(signal.SIGSTOP)

    unplug = refuse = mute = deafen = silence

    def heal(self, node):
        self.cluster.daemons[node].send_signal(signal.SIGCONT)


def wires(nodes):
    made = Wires.__new__(Wires)
    made.holders = []
    try:
        made.__init__(nodes)
        return made
    except (PermissionError, FileNotFoundError) as error:
        for holder in made.holders:
            holder.kill()
        return Frozen(error)
