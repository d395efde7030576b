import type { ByteView } from '../../netlink/bytes.ts'
import type { Connection } from '../../netlink/connection.ts'
import type { Request, Words } from '../../netlink/conversation.ts'
import { errnoNumber } from '../../netlink/errno.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { type Message, NFGENMSG_LENGTH, setSequence } from '../../netlink/message.ts'
import type { Transport } from '../../netlink/transport.ts'
import { NFT_MSG_GETGEN } from './constants.ts'
import { decodeGeneration } from './decode.ts'
import { getRequest } from './get-request.ts'

const WORDS: Words = { operation: 'read', object: 'nf_tables generation' }

/** Encodes NFT_MSG_GETGEN. */
function generationRequest(): Uint8Array {
  return getRequest({ type: NFT_MSG_GETGEN, flags: 0, family: 0, sequence: 0 })
}

/**
 * Creates a function that reads the generation with NFT_MSG_GETGEN. Each commit reads it twice, so the request is
 * encoded once.
 */
export function generationReader(connection: Connection): () => number {
  const datagram = generationRequest()
  let generation: number | undefined
  const request: Request = {
    ...WORDS,
    build: sequence => setSequence(datagram, sequence),
    onMessage: (view, message) => {
      generation = generationIn(view, message)
    },
  }
  return () => {
    generation = undefined
    connection.roundTrip(request)
    if (generation !== undefined) return generation
    throw new NetlinkError({ ...WORDS, errno: errnoNumber('EPROTO'), extendedAck: 'an empty answer' })
  }
}

/**
 * Calls `changed` after the generation changed, and once at first. The generation is read every `everyMs` without
 * JavaScript. Returns undefined for a transport that cannot repeat a request; the transport serves only this.
 */
export function watchGeneration(
  transport: Transport,
  everyMs: number,
  changed: () => void,
): (() => void) | undefined {
  return transport.repeat?.(generationRequest(), everyMs, changed)
}

/** Head of the attribute NFTA_GEN_ID: 8 bytes, type 1. */
const ID_HEAD = (1 << 16) | 8

/** Decodes only the generation: the kernel puts it first. */
function generationIn(view: ByteView, message: Message): number {
  const at = message.start + NFGENMSG_LENGTH
  const { data } = view
  const isFirst = message.end - at >= 8 && data.getUint32(at, true) === ID_HEAD
  return isFirst ? data.getUint32(at + 4) : decodeGeneration(view, message).id
}

/** Returns the generation after one commit. The kernel's counter skips 0 when it wraps. */
export function nextGeneration(generation: number): number {
  return generation === 0xffff_ffff ? 1 : generation + 1
}
