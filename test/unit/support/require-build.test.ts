import { spawnSync } from 'node:child_process'
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import config from '../../../vitest.config.ts'
import { temporaryFolder } from '../../support/folder.ts'

const HELPER = 'test/support/require-build.mjs'

test('a clone that is not built says what to run, in one line', () => {
  const top = temporaryFolder()
  for (const folder of ['test/support', 'build/Release', 'dist'])
    mkdirSync(join(top, folder), { recursive: true })
  copyFileSync(HELPER, join(top, HELPER))
  const outcome = () => {
    const script = `import(${JSON.stringify(join(top, HELPER))}).then(({ requireBuild }) => requireBuild())`
    const { status, stderr } = spawnSync(process.execPath, ['-e', script], { encoding: 'utf8' })
    return [status, stderr]
  }
  expect(outcome()).toEqual([
    1,
    'the native addon is not built (build/Release/kprobe.node); run: npm run build\n',
  ])
  writeFileSync(join(top, 'build/Release/kprobe.node'), '')
  expect(outcome()).toEqual([1, 'the command is not built (dist/kprobe.mjs); run: npm run build\n'])
  writeFileSync(join(top, 'dist/kprobe.mjs'), '')
  expect(outcome()).toEqual([0, ''])
})

test('each script that needs the build asks for it', () => {
  const own = ['bench/bundle', 'bench-cluster/run', 'attack/run', 'cluster/run', 'trip/run', 'vm/run']
  for (const name of own)
    expect(readFileSync(`test/${name}.mjs`, 'utf8'), name).toMatch(/^[^/\n]*\brequireBuild\(/m)
  const projects = (config.test?.projects ?? []).flatMap(project =>
    typeof project === 'object' && 'test' in project && project.test !== undefined ? [project.test] : [],
  )
  const asking = projects.filter(({ globalSetup }) => JSON.stringify(globalSetup)?.includes(HELPER))
  expect(projects.map(({ name }) => name).filter(name => !asking.some(each => each.name === name))).toEqual([
    'unit',
    'unit-mocked',
    'sim',
  ])
})
