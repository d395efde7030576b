import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { DaemonRun } from '../../support/daemon-run.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { configFrom } from '../../support/parse-flags.ts'
import { freePorts } from '../../support/reference/ports.ts'
import { ask } from '../telemetry/http-client.ts'

it.each([
  ['--healthz-bind-address', '/healthz'],
  ['--metrics-bind-address', '/metrics'],
])(
  'a change of %s moves its server while the daemon runs, and an empty one closes it',
  async (flag, path) => {
    const folder = temporaryFolder()
    writeFileSync(join(folder, 'objects.yaml'), '{apiVersion: v1, kind: List, items: []}')
    const [first, second] = await freePorts(2)
    const at = (address: string) =>
      configFrom([
        `--source=file:${folder}`,
        '--healthz-bind-address=',
        '--metrics-bind-address=',
        '--admin-socket=',
        `${flag}=${address}`,
      ])
    const answers = (port: number | undefined) =>
      ask({ ...(port === undefined ? {} : { port }), path }).then(
        ({ status }) => status === 200,
        () => false,
      )
    const run = new DaemonRun()
    onTestFinished(() => run.end())
    void run.start(at(`127.0.0.1:${first}`), { listens: true })
    await run.until(() => answers(first), 'the first port answers')
    await run.reconfigure?.(at(`127.0.0.1:${second}`))
    await run.until(
      async () => (await answers(second)) && !(await answers(first)),
      'only the second port answers',
    )
    await run.reconfigure?.(at(''))
    await run.until(async () => !(await answers(second)), 'no port answers')
    expect(run.log).not.toContain('cannot listen')
  },
)
