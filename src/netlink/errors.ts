import { errnoName, errnoNumber, errnoWords } from './errno.ts'

export interface NetlinkErrorDetails {
  /** The operation that failed: `add element`. */
  readonly operation: string
  /** The object of the operation: `ip kube-proxy frontends (ns1/web)`. */
  readonly object: string
  /** Positive errno. */
  readonly errno: number
  /** NLMSGERR_ATTR_MSG, or our own explanation. */
  readonly extendedAck?: string | undefined
  /** NLMSGERR_ATTR_OFFS: byte offset into the rejected message, or into the datagram that could not be decoded. */
  readonly offset?: number | undefined
  readonly sequence?: number | undefined
  readonly cause?: unknown
  /** Name and words of an errno that only one subsystem has. */
  readonly meaning?: { readonly code: string; readonly words: string } | undefined
}

/** A rejection by the kernel, or bytes that cannot be encoded (EMSGSIZE) or decoded (EBADMSG). */
export class NetlinkError extends Error {
  override readonly name = 'NetlinkError'
  readonly operation: string
  readonly object: string
  readonly errno: number
  /** The errno's name. */
  readonly code: string
  readonly extendedAck: string | undefined
  readonly offset: number | undefined
  readonly sequence: number | undefined

  constructor(details: NetlinkErrorDetails) {
    super(textOf(details), details.cause === undefined ? undefined : { cause: details.cause })
    this.operation = details.operation
    this.object = details.object
    this.errno = details.errno
    this.code = details.meaning?.code ?? errnoName(details.errno)
    this.extendedAck = details.extendedAck
    this.offset = details.offset
    this.sequence = details.sequence
  }
}

function textOf({ operation, object, errno, extendedAck, meaning }: NetlinkErrorDetails): string {
  const where = object === '' ? operation : `${operation} ${object}`
  const why = extendedAck === undefined ? '' : `: ${extendedAck}`
  const { code, words } = meaning ?? { code: errnoName(errno), words: errnoWords(errno) }
  return `${where}: ${code} (${words})${why}`
}

/** Creates the error for bytes of the kernel that violate the protocol; `offset` is into the datagram. */
export function malformed(why: string, offset: number): NetlinkError {
  return new NetlinkError({
    operation: 'decode',
    object: 'netlink message',
    errno: errnoNumber('EBADMSG'),
    extendedAck: `${why} at byte ${offset}`,
    offset,
  })
}

/** Creates the error for a value that does not fit into its field. */
export function unencodable(why: string): NetlinkError {
  return new NetlinkError({
    operation: 'encode',
    object: 'netlink message',
    errno: errnoNumber('EMSGSIZE'),
    extendedAck: why,
  })
}

/**
 * The kernel's answer was lost: it dropped replies (ENOBUFS), or none arrived in time (ETIMEDOUT). The request may
 * have succeeded.
 */
export class OutcomeUnknownError extends NetlinkError {}
