import type { ByteView } from '../../netlink/bytes.ts'
import { NLM_F_DUMP } from '../../netlink/constants.ts'
import type { Request } from '../../netlink/conversation.ts'
import type { Message } from '../../netlink/message.ts'
import { type AttributeSet, type Attributes, type Fields, writeAttributes } from '../../netlink/schema.ts'
import { familyNumber, familyOf } from './decode.ts'
import { getRequest } from './get-request.ts'
import type { TableName } from './state.ts'

/** A dump of objects of one table, or of one family. */
export interface Dump<F extends Fields> {
  /** NFT_MSG_GET*. */
  readonly type: number
  /** For errors: `rules of table`. */
  readonly what: string
  readonly table: TableName
  readonly set: AttributeSet<F>
  /** Kernels that do not know the filter ignore it. */
  readonly filter: Attributes<F>
}

export type OnMessage = (view: ByteView, message: Message) => void

/** Creates the request of a dump. It skips messages of other families. */
export function dumpRequest<F extends Fields>(
  { type, what, table: { family, name }, set, filter }: Dump<F>,
  onMessage: OnMessage,
): Request {
  return {
    operation: 'list',
    object: `${what} ${family} ${name}`,
    build: sequence =>
      getRequest({ type, flags: NLM_F_DUMP, family: familyNumber(family), sequence }, out =>
        writeAttributes(out, set, filter),
      ),
    onMessage(view, message) {
      if (familyOf(view, message) === family) onMessage(view, message)
    },
  }
}
