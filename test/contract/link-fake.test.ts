import { describe } from 'vitest'
import { formatIp } from '../../src/base/ip.ts'
import { AF_INET, AF_INET6 } from '../../src/netlink/constants.ts'
import { ip } from '../support/addresses.ts'
import { FakeLinks } from '../support/fake-link/kernel.ts'
import { type LinkTarget, linkSuite } from './link-suite.ts'

const fake = (): LinkTarget => {
  const kernel = new FakeLinks()
  return {
    open: () => kernel.open(),
    sight(name) {
      const link = kernel.byName(name)
      if (link === undefined) return undefined
      const addresses = link.addresses.map(({ ip, prefixLength }) => `${formatIp(ip)}/${prefixLength}`)
      return { kind: link.kind, up: false, addresses }
    },
    addLink: (name, kind) => kernel.add(name, kind),
    addAddress(name, address) {
      const [text = '', prefix] = address.split('/')
      kernel.addAddress(name, {
        family: text.includes(':') ? AF_INET6 : AF_INET,
        ip: ip(text),
        prefixLength: Number(prefix),
        flags: 0,
      })
    },
  }
}

describe('devices in memory', () => linkSuite(fake))
