import type { ByteView } from '../../netlink/bytes.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NFNL_SUBSYS_NFTABLES, NLM_F_REQUEST } from '../../netlink/constants.ts'
import type { Request, Words } from '../../netlink/conversation.ts'
import { errnoNumber, NetlinkError } from '../../netlink/errors.ts'
import {
  encodeMessage,
  type Message,
  NFGENMSG_LENGTH,
  setSequence,
  writeNfGenMsg,
} from '../../netlink/message.ts'
import type { Repetition, Transport } from '../../netlink/transport.ts'
import { NFT_MSG_GETGEN, NFT_MSG_NEWGEN } from './constants.ts'
import { decodeGeneration } from './decode.ts'

const GETGEN = (NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_GETGEN
const NEWGEN = (NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_NEWGEN
const WORDS: Words = { operation: 'read', object: 'nf_tables generation' }

/** Encodes NFT_MSG_GETGEN. */
export function generationRequest(): Uint8Array {
  return encodeMessage({ type: GETGEN, flags: NLM_F_REQUEST, sequence: 0 }, out =>
    writeNfGenMsg(out.out, { family: 0, resourceId: 0 }),
  )
}

/** Creates a function that reads the generation with NFT_MSG_GETGEN; the request is encoded once. */
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

/** Head of the attribute NFTA_GEN_ID: 8 bytes, type 1. */
const ID_HEAD = (1 << 16) | 8
const ID_LENGTH = 8

export function isGeneration({ type }: Message): boolean {
  return type === NEWGEN
}

/** Decodes only the generation: the kernel puts it first. */
export function generationIn(view: ByteView, message: Message): number {
  const at = message.start + NFGENMSG_LENGTH
  const { data } = view
  const isFirst = message.end - at >= ID_LENGTH && data.getUint32(at, true) === ID_HEAD
  return isFirst ? data.getUint32(at + 4) : decodeGeneration(view, message).id
}

/** Reads the generation again and again without JavaScript, over a socket of its own. */
export class GenerationWatch {
  readonly #transport: Transport
  readonly #repetition: Repetition

  /** Undefined for a transport that cannot repeat a request, which is closed then. */
  static open(transport: Transport, everyMs: number, changed: () => void): GenerationWatch | undefined {
    const repetition = transport.repeat?.(generationRequest(), everyMs, changed)
    if (repetition !== undefined) return new GenerationWatch(transport, repetition)
    void transport.close()
    return undefined
  }

  private constructor(transport: Transport, repetition: Repetition) {
    this.#transport = transport
    this.#repetition = repetition
  }

  /** Any other generation is news from now on. The kernel puts the attribute right behind what the request has, too. */
  expect(generation: number): void {
    const attribute = new DataView(new ArrayBuffer(ID_LENGTH))
    attribute.setUint32(0, ID_HEAD, true)
    attribute.setUint32(4, generation)
    this.#repetition.expect(new Uint8Array(attribute.buffer))
  }

  stop(): void {
    this.#repetition.stop()
    void this.#transport.close()
  }
}
