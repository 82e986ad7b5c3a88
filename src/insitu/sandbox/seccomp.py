"""The seccomp filter of every process in a sandbox, as a classic BPF program made in Python.

Everything is allowed except what a development machine does not need and kernels have been
attacked through. Another architecture's calls kill the process (the 32-bit entry would
dodge a 64-bit filter). Where a program may ask for namespaces in passing (`clone3`), the
answer is ENOSYS, so that libraries fall back to `clone`, whose flags can be seen.
"""

import errno
import platform
import struct

_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NR_OFFSET, _ARCH_OFFSET, _ARG0_OFFSET = 0, 4, 16
_X32_BIT = 0x40000000
_NAMESPACE_FLAGS = 0x7E020000 | 0x00000080  # CLONE_NEW*; the last is CLONE_NEWTIME
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_FAMILIES = (1, 2, 10)  # unix, inet, inet6
_NETLINK = 16

# Name: (x86-64, AArch64); -1 where the architecture has no such call.
_CALLS: dict[str, tuple[int, int]] = {
    "clone": (56, 220),
    "ioctl": (16, 29),
    "socket": (41, 198),
    "unshare": (272, 97),
}
_REFUSED: dict[str, tuple[int, int]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "create_module": (174, -1),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, -1),
    "init_module": (175, 105),
    "ioperm": (173, -1),
    "iopl": (172, -1),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, -1),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "query_module": (178, -1),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "set_mempolicy": (238, 237),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, -1),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "uselib": (134, -1),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
_ABSENT: dict[str, tuple[int, int]] = {
    "clone3": (435, 435),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "memfd_secret": (447, 447),
}
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def supported() -> bool:
    """Whether there is a filter for this machine's architecture."""
    return platform.machine() in _ARCHITECTURES


def filter_program(machine: str | None = None) -> bytes:
    """The program as `struct sock_filter` entries of 8 bytes each.

    Raises:
        KeyError: no filter for the architecture `machine` (default: this one's).
    """
    column, architecture = _ARCHITECTURES[machine or platform.machine()]
    code = [
        _op(_LOAD, _ARCH_OFFSET),
        _op(_JUMP_EQ, architecture, 1, 0),
        _op(_RETURN, _KILL_PROCESS),
    ]
    code.append(_op(_LOAD, _NR_OFFSET))
    if column == 0:
        code += [_op(_JUMP_GE, _X32_BIT, 0, 1), _error(errno.ENOSYS)]
    for table, answer in ((_ABSENT, errno.ENOSYS), (_REFUSED, errno.EPERM)):
        for numbers in table.values():
            if numbers[column] >= 0:
                code += [_op(_JUMP_EQ, numbers[column], 0, 1), _error(answer)]
    for name, rules in _argument_rules().items():
        code += [_op(_JUMP_EQ, _CALLS[name][column], 0, len(rules)), *rules]
    code.append(_op(_RETURN, _ALLOW))
    return b"".join(code)


def _argument_rules() -> dict[str, list[bytes]]:
    """Per call the instructions that look at its arguments; each list ends with a return."""
    no_namespaces = [
        _op(_LOAD, _ARG0_OFFSET),
        _op(_JUMP_SET, _NAMESPACE_FLAGS & ~0x80, 0, 1),
        _error(errno.EPERM),
        _op(_RETURN, _ALLOW),
    ]
    families = [_op(_LOAD, _ARG0_OFFSET)]
    for family in _FAMILIES:
        families += [_op(_JUMP_EQ, family, 0, 1), _op(_RETURN, _ALLOW)]
    families += [
        _op(_JUMP_EQ, _NETLINK, 1, 0),
        _error(errno.EAFNOSUPPORT),
        _op(_LOAD, _ARG0_OFFSET + 16),  # the protocol: only route
        _op(_JUMP_EQ, 0, 1, 0),
        _error(errno.EAFNOSUPPORT),
        _op(_RETURN, _ALLOW),
    ]
    terminals = [_op(_LOAD, _ARG0_OFFSET + 8)]
    for request in (_TIOCSTI, _TIOCLINUX):
        terminals += [_op(_JUMP_EQ, request, 0, 1), _error(errno.EPERM)]
    terminals.append(_op(_RETURN, _ALLOW))
    unshare = list(no_namespaces)
    unshare[1] = _op(_JUMP_SET, _NAMESPACE_FLAGS, 0, 1)
    return {"clone": no_namespaces, "unshare": unshare, "socket": families, "ioctl": terminals}


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _error(number: int) -> bytes:
    return _op(_RETURN, _ERRNO | number)
