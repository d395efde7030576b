import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { Script } from 'node:vm'
import { type BuildOptions, build, type PluginBuild } from 'esbuild'
import { expect, it } from 'vitest'

async function bundled(options: BuildOptions = {}): Promise<string> {
  const { outputFiles } = await build({
    absWorkingDir: fileURLToPath(new URL('../../..', import.meta.url)),
    entryPoints: ['src/main.ts'],
    bundle: true,
    format: 'cjs',
    platform: 'node',
    target: 'node20',
    // deploy/build.mjs looks at the packages, too.
    packages: 'external',
    define: { 'import.meta.url': 'importMetaUrl' },
    logLevel: 'silent',
    ...options,
    write: false,
  })
  return outputFiles.map(({ text }) => text).join('\n')
}

it('is all ASCII, since its loader reads Latin-1', async () => {
  const lines = (await bundled()).split('\n')
  expect(lines.filter(line => [...line].some(letter => letter > '\x7f'))).toEqual([])
})

it('fails when a command waits for ever and nothing is left that could end that', async () => {
  const commands = {
    name: 'commands',
    setup(of: PluginBuild) {
      const contents = 'export const runCommand = () => new Promise(() => undefined)'
      of.onLoad({ filter: /src\/commands\.ts$/ }, () => ({ contents }))
    },
  }
  const program = await bundled({ plugins: [commands] })
  expect(spawnSync(process.execPath, ['-'], { input: program }).status).toBe(1)
})

it('has a length of its own, by which V8 tells whether kept code is of it', async () => {
  const { withOwnLength } = await import(new URL('../../../deploy/own-length.mjs', import.meta.url).href)
  const scriptOf = (source: string, cachedData?: Buffer) =>
    new Script(withOwnLength(Buffer.from(source)).toString('latin1'), { cachedData })
  const kept = scriptOf('(() => 500)').createCachedData()
  expect(scriptOf('(() => 600)', kept).runInThisContext()()).toBe(600)
  expect(scriptOf('(() => 500)', kept).cachedDataRejected).toBe(false)
})
