import { anyContains, type Cidr } from '../../base/cidr.ts'
import { familyOf, type Ip } from '../../base/ip.ts'
import { entryKey } from '../../kernel/ipset/entry-key.ts'
import type { IpsetEntry } from '../../kernel/ipset/state.ts'
import type { IpvsProtocol, VirtualAddress } from '../../kernel/ipvs/state.ts'
import { PROTOCOL_NUMBERS } from '../common/octet-keys.ts'
import { type SetStem, setName } from './set-names.ts'

/**
 * Whose virtual servers and addresses are: the sets are the record of it. They are filled before anything is made by
 * them and emptied last, so that whoever comes after a crash finds all that was made; and kube-proxy's own IPVS mode
 * keeps the same record.
 */
export interface Ownership {
  isOurServer(server: VirtualAddress): boolean
  /** Of the dummy device. */
  isOurAddress(ip: Ip): boolean
}

/** Entries by entryKey; several records are as good as one. */
export interface EntryRecord {
  has(entryKey: string): boolean
}

const BY_ADDRESS_AND_PORT: readonly SetStem[] = [
  'CLUSTER-IP',
  'EXTERNAL-IP',
  'EXTERNAL-IP-LOCAL',
  'LOAD-BALANCER',
]

const BY_PORT: Readonly<{ [protocol in IpvsProtocol]: readonly SetStem[] }> = {
  TCP: ['NODE-PORT-TCP', 'NODE-PORT-LOCAL-TCP'],
  UDP: ['NODE-PORT-UDP', 'NODE-PORT-LOCAL-UDP'],
  SCTP: ['NODE-PORT-SCTP-HASH', 'NODE-PORT-LOCAL-SCTP-HASH'],
}

/** A virtual server in `excludeCidrs` is never ours. */
export function ownershipBy(records: readonly EntryRecord[], excludeCidrs: readonly Cidr[]): Ownership {
  const isRecorded = (stem: SetStem, ip: Ip, entry: IpsetEntry): boolean => {
    const key = entryKey(setName(stem, familyOf(ip)), entry)
    return records.some(record => record.has(key))
  }
  const isOurAddress = (ip: Ip): boolean => isRecorded('IPVS-IPS', ip, { ip })
  return {
    isOurAddress,
    isOurServer({ protocol, ip, port }) {
      if (anyContains(excludeCidrs, ip)) return false
      if (isOurAddress(ip)) return true
      const entry = { ip, protocol: PROTOCOL_NUMBERS[protocol], port }
      return (
        BY_ADDRESS_AND_PORT.some(stem => isRecorded(stem, ip, entry)) ||
        BY_PORT[protocol].some(stem => isRecorded(stem, ip, protocol === 'SCTP' ? entry : { port }))
      )
    },
  }
}
