import type { Connection } from '../../netlink/connection.ts'
import { errnoNumber } from '../../netlink/errno.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { NFT_MSG_GETGEN } from './constants.ts'
import { decodeGeneration, type Generation } from './decode.ts'
import { getRequest } from './get-request.ts'

/** Reads the generation with NFT_MSG_GETGEN. */
export function readGeneration(connection: Connection): Generation {
  const answers: Generation[] = []
  connection.roundTrip({
    operation: 'read',
    object: 'nf_tables generation',
    build: sequence => getRequest({ type: NFT_MSG_GETGEN, flags: 0, family: 0, sequence }),
    onMessage: (view, message) => answers.push(decodeGeneration(view, message)),
  })
  const [generation] = answers
  if (generation !== undefined) return generation
  const errno = errnoNumber('EPROTO')
  throw new NetlinkError({
    operation: 'read',
    object: 'nf_tables generation',
    errno,
    extendedAck: 'an empty answer',
  })
}

/** Returns the generation after one commit. The kernel's counter skips 0 when it wraps. */
export function nextGeneration(generation: number): number {
  return generation === 0xffff_ffff ? 1 : generation + 1
}
