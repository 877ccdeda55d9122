"""Host key policy: accepts the key that a machine shows, adds it, or refuses the login."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.transport.ssh.auth import SshContext
from runner.transport.ssh.config import Endpoint
from runner.transport.ssh.errors import FailureMessages
from runner.transport.ssh.known_hosts import HostKey, KeyStatus


@dataclass(frozen=True)
class HostKeyPolicy:
    """Checks the host key of one machine; paramiko asks between key exchange and login."""

    context: SshContext
    endpoint: Endpoint
    messages: FailureMessages

    def missing_host_key(self, _client: object, _name: str, key: Any) -> None:
        """Accept a key, or raise LoginFailure; paramiko's own lists stay empty."""
        endpoint, messages = self.endpoint, self.messages
        shown = HostKey(key.get_name(), key.asbytes())
        names = endpoint.lookup_names
        result = self.context.known_hosts.check(names, shown, endpoint.known_hosts_files)
        if result.status is KeyStatus.REVOKED:
            raise messages.key_revoked(shown, result.entries[0])
        if result.status is KeyStatus.CHANGED:
            raise messages.key_changed(shown, result.entries, names[0])
        if result.status is KeyStatus.UNKNOWN:
            if not self.context.accept_new:
                raise messages.key_unknown(shown)
            self._add_key(names[0], shown)

    def _add_key(self, name: str, key: HostKey) -> None:
        file = self.endpoint.known_hosts_files[0]
        note = f"{file}: added {name} {key.type} {key.fingerprint}"
        try:
            self.context.known_hosts.add(name, key, file)
        except OSError as error:
            note = f"{file}: cannot be written ({error.strerror}); the key of {name} is not added"
        self.context.on_note(note)
