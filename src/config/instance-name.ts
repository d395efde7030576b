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

/** Reads --service-proxy-name; undefined for the unnamed proxy. An invalid name is an error of the reader. */
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
    case 'iptables':
    case 'userspace':
      return undefined
    case 'ipvs':
      return IPVS
  }
}

const IPVS =
  'cannot be used in the mode ipvs: the kernel has one list of virtual servers in a network namespace, and the proxy without a name ' +
  'removes those that it does not know; the modes nftables, iptables and userspace keep apart what is of each name'
