import type { XtTableName } from '../../../kernel/xt/scope.ts'
import { type ChainNames, dispatchNames } from '../../xt-common/layout.ts'
import type { PortProtocol } from './by-port.ts'

/** A chain with entries of all Services, and how these are divided among chains of their own. */
export interface List {
  readonly table: XtTableName
  readonly chain: string
  readonly by: readonly Division[]
  /**
   * The list is short in most clusters, where dividing costs each packet more than it saves. It is divided only in
   * large clusters.
   */
  readonly onlyLarge: boolean
}

export type Division =
  | { readonly kind: 'address'; readonly prefix: string; readonly levels: 1 | 2 }
  | { readonly kind: 'port'; readonly prefix: string; readonly protocol: PortProtocol }

export function listsOf(names: ChainNames): readonly List[] {
  const prefixes = dispatchNames(names.prefix)
  const filtered = (chain: string, prefix: string): List => {
    return { table: 'filter', chain, by: [{ kind: 'address', prefix, levels: 1 }], onlyLarge: true }
  }
  return [
    {
      table: 'nat',
      chain: names.services,
      by: [{ kind: 'address', prefix: prefixes.natAddresses, levels: 2 }],
      onlyLarge: false,
    },
    {
      table: 'nat',
      chain: names.nodePorts,
      by: [
        { kind: 'port', prefix: prefixes.natPorts.TCP, protocol: 'TCP' },
        { kind: 'port', prefix: prefixes.natPorts.UDP, protocol: 'UDP' },
      ],
      onlyLarge: false,
    },
    filtered(names.services, prefixes.services),
    filtered(names.externalServices, prefixes.externalServices),
    filtered(names.proxyFirewall, prefixes.proxyFirewall),
    {
      table: 'filter',
      chain: names.nodePorts,
      by: [{ kind: 'port', prefix: prefixes.healthPorts, protocol: 'TCP' }],
      onlyLarge: true,
    },
  ]
}
