import { describe, it } from 'vitest'
import { attackAsPod, POD_MODES } from '../pod-packets.ts'

describe('a compromised pod, or a host beside the node', () => {
  it.for([
    ['nftables mode', POD_MODES.nftables],
    ['iptables mode', POD_MODES.iptables],
    ['iptables mode without node ports at localhost', POD_MODES.iptablesWithoutLocalhost],
  ] as const)('F149: %s: martian packets reach nobody, guards hold', ([, mode], { task }) =>
    attackAsPod(mode, task),
  )
})
