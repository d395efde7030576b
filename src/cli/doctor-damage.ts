import { failureText } from '../base/failure-text.ts'
import type { Config } from '../config/config.ts'
import { NFT_FAMILIES } from '../modes/common/family.ts'
import type { Finding } from '../modes/common/finding.ts'
import { isKubeProxyTable, outlinesOf } from '../modes/common/kube-proxy.ts'
import type { HeldMode } from '../modes/mode.ts'
import { damageText, type ProgrammedMode, programmedModes } from './programmed.ts'
import { readModes } from './read-modes.ts'

/** Whether packets come to the Services that the kernel holds rules for; nothing where it holds none. */
export async function damageFindings({ serviceProxyName }: Config): Promise<readonly Finding[]> {
  let modes: readonly ProgrammedMode[]
  try {
    const { held } = await readModes({ families: NFT_FAMILIES, proxyName: serviceProxyName })
    modes = programmedModes(held.filter(mode => !isOfKubeProxy(mode)))
  } catch (error) {
    const text = `cannot be read: ${failureText(error)}`
    return [{ kind: 'warning', subject: 'rules of kprobe in the kernel', text }]
  }
  if (modes.length === 0) return []
  const subject = `rules of ${modes.map(({ mode }) => mode).join(' and ')} mode`
  const text = damageText(modes)
  if (text !== undefined) return [{ kind: 'damaged', subject, text }]
  const count = modes.reduce((sum, { rows }) => sum + rows.length, 0)
  return [{ kind: 'ok', subject, text: `packets reach all ${count} frontends that the kernel holds` }]
}

/** Tests whether kube-proxy wrote all tables of the mode, whose table names are the same. */
function isOfKubeProxy({ tables }: HeldMode): boolean {
  return tables.length > 0 && tables.every(table => isKubeProxyTable(outlinesOf(table)))
}
