"""Runs a command in a pseudo terminal: pseudo-terminal.py COLUMNS ROWS COMMAND...

Standard input takes orders, one a line: `keys HEX`, `size COLUMNS ROWS`, `signal NAME`. Standard output is what the
command writes to its terminal. Standard error says `stopped`, and at the end `exit CODE MODE`, where MODE is `restored`
when the terminal is as it was before.
"""
import fcntl
import os
import select
import signal
import struct
import sys
import termios


def set_size(descriptor, columns, rows):
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def say(text):
    os.write(2, (text + "\n").encode())


def obey(order, master, child):
    word, *rest = order.split()
    if word == "keys":
        os.write(master, bytes.fromhex(rest[0]))
    elif word == "size":
        set_size(master, int(rest[0]), int(rest[1]))
        os.kill(child, signal.SIGWINCH)
    else:
        os.kill(child, getattr(signal, "SIG" + rest[0]))


master, slave = os.openpty()
set_size(master, int(sys.argv[1]), int(sys.argv[2]))
before = termios.tcgetattr(slave)
child = os.fork()
if child == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for descriptor in (0, 1, 2):
        os.dup2(slave, descriptor)
    os.execvp(sys.argv[3], sys.argv[3:])

pending = b""
sources = [master, 0]
while True:
    ready, _, _ = select.select(sources, [], [], 0.02)
    if master in ready:
        os.write(1, os.read(master, 65536))
    if 0 in ready:
        chunk = os.read(0, 65536)
        if not chunk:
            sources.remove(0)
        pending += chunk
        *orders, pending = pending.split(b"\n")
        for order in orders:
            obey(order.decode(), master, child)
    ended, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
    if ended == child and os.WIFSTOPPED(status):
        say("stopped")
    elif ended == child:
        while select.select([master], [], [], 0)[0]:
            os.write(1, os.read(master, 65536))
        mode = "restored" if termios.tcgetattr(slave) == before else "changed"
        say(f"exit {os.waitstatus_to_exitcode(status)} {mode}")
        break
