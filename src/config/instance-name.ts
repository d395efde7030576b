import { isDnsLabel } from '../model/names.ts'
import type { ProxyMode } from './config.ts'
import type { FlagSpec } from './flag.ts'
import { type FlagReader, quote } from './flag-reader.ts'

const FLAG = 'service-proxy-name'

/** Of commands that look at the kernel alone. */
export const INSTANCE_FLAG: FlagSpec = {
  name: FLAG,
  kind: 'text',
  placeholder: 'NAME',
  default: '',
  help: 'only what is of the proxy of this name; unset: of the one without a name',
}

/** --service-proxy-name; undefined for the proxy without a name. What is no name is told to the reader. */
export function readInstanceName(reader: FlagReader): string | undefined {
  const name = reader.text(FLAG) ?? ''
  if (name !== '' && !isDnsLabel(name))
    reader.fail(
      `--${FLAG}`,
      `${quote(name)} is not 1 to 63 lower-case letters, digits and hyphens that begin and end with no hyphen`,
    )
  return name === '' ? undefined : name
}

/** Tables of the proxy without a name are called so: kube-proxy-ipvs, kube-proxy-userspace. */
const RESERVED: readonly string[] = ['ipvs', 'userspace'] satisfies readonly ProxyMode[]

/** Why a proxy of that name cannot program the kernel in that mode; undefined if it can. */
export function whyNotInstance(name: string, mode: ProxyMode): string | undefined {
  if (RESERVED.includes(name))
    return `${quote(name)} is a name that no proxy can have: a table of the one without a name is called so`
  switch (mode) {
    case 'nftables':
    case 'userspace':
      return undefined
    case 'iptables':
      return `cannot be used in the mode iptables, whose chains (KUBE-SERVICES, ...) a node has once; ${OTHERS}`
    case 'ipvs':
      return `cannot be used in the mode ipvs, whose virtual servers and ipsets a node has once; ${OTHERS}`
  }
}

const OTHERS = 'the modes nftables and userspace have tables of their own for each name'
