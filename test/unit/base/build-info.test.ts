import { describe, expect, it } from 'vitest'
import { buildInfo, buildText } from '../../../src/base/build-info.ts'

describe('build info', () => {
  it('says that nothing was built where the sources run', () => {
    expect(buildInfo()).toEqual({ version: 'from source', commit: '', date: '' })
  })

  it.each([
    [{ version: '0.1.0', commit: '41d39fb', date: '' }, '0.1.0 (commit 41d39fb)'],
    [{ version: '0.1.0', commit: '', date: '' }, '0.1.0'],
  ])('reads %j as %s', (build, text) => {
    expect(buildText(build)).toBe(text)
  })
})
