import { NetlinkError } from './errors.ts'

/**
 * A netlink socket reduced to bytes; tests replace it by a fake kernel. Datagrams keep their boundaries. native.ts
 * implements it with the addon, and test/support with an in-memory kernel.
 */
export interface Transport {
  /** Sends one datagram now; blocks while the kernel processes it. Throws a SystemError. */
  sendSync(datagram: Uint8Array): void
  /** Sends one datagram from the thread pool; `datagram` must not change meanwhile. Rejects with SystemError. */
  send(datagram: Uint8Array): Promise<void>
  /**
   * Reads one waiting datagram into `into` and returns its length, or undefined when none is waiting. Throws a
   * SystemError: ENOBUFS when the kernel dropped something, EMSGSIZE when the datagram did not fit (it is lost). It
   * skips datagrams that the kernel did not send. With `roomBytes`, it may continue behind the datagram while so many bytes
   * are left: messages are then aligned to 4 bytes, and an error on the way comes with the next call.
   */
  receive(into: Uint8Array, roomBytes?: number): number | undefined
  /** Calls `readable` whenever datagrams may be waiting, until the result is called. Supports one watcher at a time. */
  watch(readable: () => void): () => void
  /**
   * Sends a short request every `everyMs`, and calls `changed` when its answer is not the expected one or is missing.
   * The answers are compared in C, so an expected one costs little. Takes the place of `watch`, and the socket must be
   * used for nothing else until the repetition is stopped.
   */
  repeat?(datagram: Uint8Array, everyMs: number, changed: () => void): Repetition
  /** Joins a multicast group (NFNLGRP_*). */
  join(group: number): void
  leave(group: number): void
  readonly portId: number
  /** Maximum bytes of a datagram that the kernel accepts; a longer one fails with EMSGSIZE and changes nothing. */
  readonly sendLimitBytes: number
  /** Settles when all sends in flight have ended; idempotent. */
  close(): Promise<void>
}

/** A request that is repeated. */
export interface Repetition {
  /** Expects an answer that has these octets behind as many bytes as the request has. */
  expect(octets: Uint8Array): void
  stop(): void
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

/** Returns whether the kernel, its answer or the socket caused an error, and not a bug. */
export function isNetlinkFailure(error: unknown): error is NetlinkError | SystemError {
  return error instanceof NetlinkError || error instanceof SystemError
}
