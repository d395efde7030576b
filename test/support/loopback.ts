import { networkInterfaces } from 'node:os'

/** Whether this machine has IPv6 at all: containers often have none. */
export const HAS_IPV6 = Object.values(networkInterfaces()).some(
  addresses => addresses?.some(({ address }) => address === '::1') === true,
)
