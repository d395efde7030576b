/**
 * A netlink socket reduced to bytes: the seam at which tests put a fake kernel. Datagrams keep their borders.
 * Implemented by native.ts over the addon, and by test/support's in-memory kernel.
 */
export interface Transport {
  /** Sends one datagram now; blocks for as long as the kernel works on it. Throws a SystemError. */
  sendSync(datagram: Uint8Array): void
  /** Sends one datagram from the thread pool; `datagram` must not change until it settles. Rejects with SystemError. */
  send(datagram: Uint8Array): Promise<void>
  /**
   * Reads one waiting datagram into `into` and gives its length, or undefined when none is waiting. Throws a
   * SystemError: ENOBUFS when the kernel dropped something, EMSGSIZE when the datagram did not fit (it is lost).
   * Datagrams that the kernel did not send are skipped.
   */
  receive(into: Uint8Array): number | undefined
  /** Calls `readable` whenever datagrams may be waiting, until the result is called. One watcher at a time. */
  watch(readable: () => void): () => void
  /** Joins a multicast group (NFNLGRP_*). */
  join(group: number): void
  leave(group: number): void
  /** This socket's netlink port id. */
  readonly portId: number
  /** Longest datagram that the kernel takes, bytes; a longer one fails with EMSGSIZE and changes nothing. */
  readonly sendLimitBytes: number
  /** Settles when sends in flight have ended; idempotent. */
  close(): Promise<void>
}

/** A failed system call. `code` is the errno's name. */
export class SystemError extends Error {
  override readonly name = 'SystemError'
  readonly code: string
  readonly errno: number
  readonly syscall: string

  constructor(syscall: string, errno: number, code: string) {
    super(`${syscall}: ${code}`)
    this.syscall = syscall
    this.errno = errno
    this.code = code
  }
}
