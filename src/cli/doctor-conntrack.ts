import type { Config } from '../config/config.ts'
import { planSysctls, SYSCTLS, type SysctlFacts } from '../kernel/conntrack/sysctls.ts'
import type { Finding } from '../modes/common/finding.ts'

/** Compares the timeouts of connection tracking that the configuration asks for with those of the kernel. */
export async function conntrackFindings(
  { conntrack }: Config,
  read: (path: string) => Promise<string | undefined>,
): Promise<readonly Finding[]> {
  const values = await readValues(read)
  if (values.tcpEstablished === undefined) return []
  const { writes, left } = planSysctls({ ...conntrack, maxPerCore: 0 }, { processors: 1, values })
  return [
    ...writes.map(({ name, value, before }): Finding => {
      const text = `${before} now; kprobe changes it to ${value} when it starts`
      return { kind: 'note', subject: name, text }
    }),
    ...left
      .filter(({ reason }) => reason === 'larger')
      .map(({ name, value, wanted }): Finding => {
        const text = `${value} stays, although ${wanted} is configured; --conntrack-lower lowers it`
        return { kind: 'note', subject: name, text }
      }),
  ]
}

async function readValues(
  read: (path: string) => Promise<string | undefined>,
): Promise<SysctlFacts['values']> {
  const number = async (path: string) => {
    const text = await read(`/${path}`)
    return text === undefined ? undefined : Number(text)
  }
  return {
    max: undefined,
    hashSize: undefined,
    tcpEstablished: await number(SYSCTLS.tcpEstablished.path),
    tcpCloseWait: await number(SYSCTLS.tcpCloseWait.path),
    tcpFinWait: await number(SYSCTLS.tcpFinWait.path),
    tcpTimeWait: await number(SYSCTLS.tcpTimeWait.path),
    tcpBeLiberal: await number(SYSCTLS.tcpBeLiberal.path),
    udp: await number(SYSCTLS.udp.path),
    udpStream: await number(SYSCTLS.udpStream.path),
  }
}
