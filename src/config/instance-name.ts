import { isDnsLabel } from '../model/names.ts'
import type { ProxyMode } from './config.ts'
import type { FlagSpec } from './flag.ts'
import { type FlagReader, quote } from './flag-reader.ts'

const FLAG = 'service-proxy-name'

/** The flag of commands that read only the kernel. */
export const INSTANCE_FLAG: FlagSpec = {
  name: FLAG,
  kind: 'text',
  placeholder: 'NAME',
  default: '',
  help: 'only the objects of the proxy of this name; unset: those of the unnamed proxy',
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
  if (RESERVED.includes(name)) return `${quote(name)} is reserved: a table of the unnamed proxy has this name`
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
  'cannot be used in IPVS mode: a network namespace has one list of virtual servers, and the unnamed proxy ' +
  'removes those that it does not know; use nftables, iptables or userspace mode'
