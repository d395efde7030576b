import type { Octets } from '../../base/octets.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { decodeRule } from './decode.ts'
import type { Rule } from './expression.ts'
import { dumpChain } from './list-chains.ts'
import type { HookFamily } from './state.ts'

/** A rule of any program, with the kernel's number for it. */
export interface HandledRule {
  readonly handle: bigint
  readonly rule: Rule
  /** As CompiledRule.compiled. */
  readonly compiled: Octets
  /** What its counters counted. */
  readonly packets: bigint
}

/**
 * Lists the rules of one chain of any program, in their order; none when the chain does not exist. A commit meanwhile may
 * tear the list. Throws NetlinkError.
 */
export async function listHandles(
  connection: Connection,
  place: { readonly family: HookFamily; readonly table: string; readonly chain: string },
): Promise<readonly HandledRule[]> {
  const rules: HandledRule[] = []
  try {
    await dumpChain(connection, place, (spans, view, message) => {
      const { value } = decodeRule(view, message)
      const [handle, packets] = [spans.handle(view), spans.packets(view)]
      rules.push({ handle, rule: value, compiled: spans.compiled(view), packets })
    })
  } catch (error) {
    if (!(error instanceof NetlinkError) || error.code !== 'ENOENT') throw error
    return []
  }
  return rules
}
