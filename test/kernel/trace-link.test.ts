import type { ChildProcess } from 'node:child_process'
import { expect, it } from 'vitest'
import { tool } from '../support/command.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { eventually } from '../support/patience.ts'
import { Tracing } from '../support/tracing.ts'

it('kprobe trace spends no packet of --count on neighbor discovery', async () => {
  freshNetns()
  const running: ChildProcess[] = []
  tool('ip', 'link', 'add', 'nd0', 'type', 'veth', 'peer', 'name', 'nd1')
  try {
    for (const link of ['nd0', 'nd1']) tool('ip', 'link', 'set', link, 'up')
    tool('ip', '-6', 'address', 'add', 'fd00:77::1/64', 'dev', 'nd0', 'nodad')
    const tracing = await new Tracing(['--from=fd00:77::/64', '--count=2'], { running }).started()
    const send = (to: string) => tool('bash', '-c', `echo >/dev/udp/${to}/9`)
    const waits = () => tool('ip', '-6', 'neigh', 'show', 'fd00:77::2').includes('FAILED')
    send('fd00:77::2')
    // The kernel has sent its solicitations.
    await eventually(waits, { describe: () => tool('ip', '-6', 'neigh') })
    send('fd00:77::3')
    // The second may be the error of the first; a solicitation goes to a group.
    const [first = '', second = ''] = (await tracing.ended()).map(({ to }) => to)
    expect([first, second]).toEqual([
      '[fd00:77::2]:9',
      expect.stringMatching(/^(fd00:77::1|\[fd00:77::3\]:9)$/),
    ])
  } finally {
    for (const child of running) child.kill('SIGKILL')
  }
})
