"""Accounts of level `strict`: servers and agents run under uids of their own."""

import os
import pwd
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from specpilot.core.errors import Refused
from specpilot.sandbox.policy import Policy, Role

ACCOUNT_NAMES = {Role.SERVER: "specpilot-server", Role.AGENT: "specpilot-agent"}


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the machine."""

    name: str
    uid: int
    gid: int


def account_of(role: Role) -> Account:
    """The account that a role runs under at level `strict`.

    Raises:
        Refused: this process may not change its uid, or the account does not exist.
    """
    if os.geteuid() != 0:
        raise Refused(
            "only root can start processes under another uid",
            where="isolation strict",
            fix="start the controller as root, or use isolation = 'namespaces'",
        )
    if shutil.which("setpriv") is None:
        raise Refused(
            "setpriv is not installed",
            where="isolation strict",
            fix="install util-linux, or use isolation = 'namespaces'",
        )
    name = ACCOUNT_NAMES[role]
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise Refused(
            f"the account {name} does not exist",
            where="isolation strict",
            fix=f"create it with `useradd --system {name}`, or use isolation = 'namespaces'",
        ) from error
    return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid)


def hand_over(policy: Policy, account: Account) -> None:
    """Give an account the writable paths of a policy, and nothing that links in them lead to.

    Whatever the umask they were made under, their folders can be entered from outside.
    """
    for bind in policy.writable:
        mode = bind.source.lstat().st_mode
        if stat.S_ISDIR(mode):
            # bubblewrap enters the working folder as a root without a capability.
            bind.source.chmod(stat.S_IMODE(mode) | 0o711)
        os.chown(bind.source, account.uid, account.gid, follow_symlinks=False)
        for place, folders, files in os.walk(bind.source):
            for name in (*folders, *files):
                os.chown(Path(place, name), account.uid, account.gid, follow_symlinks=False)
