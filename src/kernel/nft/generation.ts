import type { Connection } from '../../netlink/connection.ts'
import { errnoNumber } from '../../netlink/errno.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { NFT_MSG_GETGEN } from './constants.ts'
import { decodeGeneration, type Generation } from './decode.ts'
import { getRequest } from './get-request.ts'

/** NFT_MSG_GETGEN. */
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

/** After one commit. 0 is left out when the kernel's counter starts over. */
export function nextGeneration(generation: number): number {
  return generation === 0xffff_ffff ? 1 : generation + 1
}
