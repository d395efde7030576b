import { closeSync, openSync, readlinkSync, writeFileSync } from 'node:fs'
import { DataType, load, open } from 'ffi-rs'

const CLONE_NEWNET = 0x40000000

/**
 * Moves this thread, which must be the process's main one, into a new and empty network namespace. Sockets opened and
 * processes started from here on live in it; what is already open stays where it was. It needs CAP_SYS_ADMIN: run
 * the tests under `unshare -Urnm`.
 */
export function freshNetns(): void {
  const before = netnsName()
  if (callLibc('unshare', [CLONE_NEWNET]) !== 0 || netnsName() === before) {
    throw new Error('unshare(CLONE_NEWNET) failed: run these tests with `unshare -Urnm npx vitest run ...`')
  }
  // The kernel copies the setting of the machine's own namespace (devinet_init_net), which a kube-proxy there has raised.
  writeFileSync('/proc/sys/net/ipv4/conf/all/route_localnet', '0')
}

/** Moves this thread into the namespace of a file, such as /proc/1/ns/net. */
export function enterNetns(file: string): void {
  const descriptor = openSync(file, 'r')
  const failed = callLibc('setns', [descriptor, CLONE_NEWNET])
  closeSync(descriptor)
  if (failed !== 0) throw new Error(`setns(${file}) failed`)
}

/** Makes this namespace forward packets, as that of a node does. */
export function forwardPackets(): void {
  for (const name of ['ipv4/ip_forward', 'ipv6/conf/all/forwarding'])
    writeFileSync(`/proc/sys/net/${name}`, '1')
}

/** The name of this thread's network namespace, as in /proc: `net:[4026531840]`. */
export function netnsName(): string {
  return readlinkSync('/proc/thread-self/ns/net')
}

function callLibc(funcName: string, paramsValue: readonly number[]): number {
  open({ library: 'libc', path: 'libc.so.6' })
  return load({
    library: 'libc',
    funcName,
    retType: DataType.I32,
    paramsType: paramsValue.map(() => DataType.I32),
    paramsValue: [...paramsValue],
  })
}
